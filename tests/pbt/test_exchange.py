"""Where members of separate runs meet: rounds from reports, whoever decides, and what is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.exchange import KEPT_ROUNDS, About, Exchange
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.settings import PbtSettings

RATE = "learning.learning_rate"
RUNS = ("a", "b", "c", "d")


def exchange_in(folder: Path, **settings: object) -> Exchange:
    pbt = PbtSettings(members=4, tune={"learning": {"learning_rate": [1e-4, 1e-1]}}, **settings)  # type: ignore[arg-type]
    made = Exchange(folder)
    made.create(About(pbt, {RATE: 1e-2}, 100, 7, RUNS))
    return made


def weights(folder: Path, member: int) -> Path:
    path = folder / f"{member}.ckpt"
    path.write_text(f"weights {member}")
    return path


def report(made: Exchange, number: int, *members: int, mean: float = 0.0) -> None:
    for member in members:
        path = weights(made.experiment, member)
        made.report(number, member, 100 * number + member, Evidence(mean + member, 0.0, 20), path)


def test_the_last_report_makes_a_round_and_the_donors_weights_stay(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    begun = made.decided(0)
    assert begun is not None
    assert begun.next_at == 100
    report(made, 1, 0, 1, 2)
    assert made.decide() == 0
    assert made.decided(1) is None
    report(made, 1, 3)
    assert made.decide() == 1
    found = made.decided(1)
    assert found is not None
    assert found.donors.keys() == {0, 1}
    assert set(found.donors.values()) <= {2, 3}
    assert found.frames == [100, 101, 102, 103]
    assert found.next_at == 200
    assert found.settings[3] == begun.settings[3]
    made.tidy()
    there = {path.name for path in made.folder.glob("reports/1/*.ckpt")}
    assert there == {f"{donor}.ckpt" for donor in found.donors.values()}
    for donor in found.donors.values():
        assert made.checkpoint(1, donor).read_text() == f"weights {donor}"
    for number in range(2, 2 + KEPT_ROUNDS):
        report(made, number, *range(4))
        assert made.decide() == number
    made.tidy()
    assert not list(made.folder.glob("reports/1/*.ckpt")), "nobody comes back from so long ago"
    assert list(made.folder.glob(f"reports/{1 + KEPT_ROUNDS}/*.ckpt"))


def test_a_checkpoint_that_its_run_removes_or_replaces_stays_as_it_was(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    report(made, 1, 0)
    path = tmp_path / "0.ckpt"
    path.unlink()
    path.write_text("newer")
    assert made.checkpoint(1, 0).read_text() == "weights 0"


def test_the_same_reports_and_the_same_seed_give_the_same_ledger(tmp_path: Path) -> None:
    ledgers = []
    for name, order in (("one", (0, 1, 2, 3)), ("two", (3, 1, 0, 2))):
        (tmp_path / name).mkdir()
        made = exchange_in(tmp_path / name)
        for number in (1, 2, 3):
            report(made, number, *order, mean=float(number))
            made.decide()
        made.write_ledger()
        ledgers.append((tmp_path / name / NAME).read_bytes())
        assert len(read_ledger(tmp_path / name / NAME)) == 4
    assert ledgers[0] == ledgers[1]


def test_of_several_who_decide_at_once_the_first_one_counts(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    report(made, 1, 0, 1, 2, 3)
    threads = [threading.Thread(target=Exchange(tmp_path).decide) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.newest == 1
    assert [path.name for path in (made.folder / "rounds").iterdir()] == ["1.json"]
    first = (made.folder / "rounds" / "1.json").read_bytes()
    made.lose(1, 0, 5, "too late", again=True)
    assert made.decide() == 1
    assert (made.folder / "rounds" / "1.json").read_bytes() == first


def test_a_round_without_a_lost_member_gives_it_the_weights_of_one_of_the_best(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    report(made, 1, 0, 1, 2)
    made.lose(1, 3, 40, "out of memory", again=True)
    assert made.decide() == 1
    found = made.decided(1)
    assert found is not None
    assert found.donors[3] == 2
    assert found.lost == {3}
    assert found.settings[3] != found.settings[2]
    assert found.next_at == 200, "its frames do not hold up the others"
    (entry,) = made.entries()[1:]
    assert entry["lost"] == {"3": "out of memory"}
    assert "3" not in entry["kept"]


def test_a_member_that_was_cancelled_takes_nothing_over(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    report(made, 1, 0, 1, 2)
    made.lose(1, 3, 40, "cancelled", again=False)
    assert made.decide() == 1
    found = made.decided(1)
    assert found is not None
    assert 3 not in found.donors
    assert 3 not in found.donors.values()


def test_nobody_decides_for_a_population_of_which_all_are_lost(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    for member in range(4):
        made.lose(1, member, 0, "broken", again=True)
    assert made.decide() == 0


def test_who_is_missing_is_told_by_the_locks_of_run_folders(tmp_path: Path) -> None:
    made = exchange_in(tmp_path)
    report(made, 1, 0)
    assert made.missing(0) == [1, 2, 3]
    with RunFolder.create(tmp_path / "b", "new"):
        assert made.missing(0) == [2, 3]
    report(made, 1, 2)
    made.lose(1, 3, 0, "broken", again=True)
    assert made.missing(0) == [1]


def test_what_cannot_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no population"):
        Exchange(tmp_path).about()
    made = exchange_in(tmp_path)
    report(made, 1, 0, 1, 2, 3)
    made.decide()
    (made.folder / "rounds" / "1.json").write_text('{"entry": 3}')
    with pytest.raises(RunFolderError, match=r"rounds/1.json: cannot be read"):
        made.decided(1)
    with pytest.raises(RunFolderError, match="has begun with other settings"):
        exchange_in(tmp_path, replace_fraction=0.5)
