"""A run that is one member of a population of separate runs: it reports, makes room, and goes on as was decided."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import SERIAL, Run, assert_same, config_of, rows_of, saved_state, small_words, train_here

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.core.run_folder import PAUSED, RunFolder
from rollmill.launch.experiment import Experiment
from rollmill.pbt.exchange import About, Exchange
from rollmill.pbt.settings import PbtSettings
from rollmill.runs.launching import plan_of
from rollmill.runs.settings.train import check

RATE = "learning.learning_rate"
MEMBERS = 3
PBT = PbtSettings(members=MEMBERS, tune={"learning": {"learning_rate": [1e-6, 1e-1]}}, min_episodes=5, episodes=20)


def exchange_in(folder: Path, period: int = 500) -> Exchange:
    made = Exchange(folder / "x")
    made.create(About(PBT, {RATE: 1e-3}, period, 0, [f"member-{k}" for k in range(MEMBERS)]))
    return made


def words(folder: Path, member: int, frames: int = 1600) -> list[str]:
    own = ["env=toy_target", f"pbt.exchange={folder / 'x'}", f"pbt.member={member}", f"run.seed={member}"]
    return [*SERIAL, *own, f"run.name=member-{member}", f"stop.frames={frames}"]


def go_on(folder: Path, member: int) -> bool:
    """Train a member until it is through, or makes room; whether it is through."""
    begun = (folder / "x" / f"member-{member}" / "diary.json").exists()
    outcome, _ = train_here(folder, *words(folder, member), mode="resume" if begun else "new")
    assert outcome.exit_code == (PAUSED if outcome.interrupted else 0)
    return not outcome.interrupted


def all_of(folder: Path, turns: list[int]) -> list[RunFolder]:
    """One place for all members, which take turns in this order."""
    left = {0, 1, 2}
    while left:
        left -= {member for member in turns if member in left and go_on(folder, member)}
    return [RunFolder(folder / "x" / f"member-{k}") for k in range(MEMBERS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exchange, list[RunFolder]]:
    folder = tmp_path_factory.mktemp("whole")
    return exchange_in(folder), all_of(folder, [0, 1, 2])


def test_members_that_take_turns_learn_from_each_other(whole: tuple[Exchange, list[RunFolder]]) -> None:
    exchange, runs = whole
    entries = exchange.entries()
    assert [entry["round"] for entry in entries[1:]] == [1, 2, 3]
    copies = [(entry, move) for entry in entries[1:] for move in entry["moves"]]
    assert copies
    for entry, move in copies:
        taker, donor = (entry["members"][move[name]] for name in ("member", "from"))
        assert taker["objective"] < donor["objective"]
        assert min(taker["episodes"], donor["episodes"]) >= 5
        assert move["settings"][RATE][0] == taker["settings"][RATE]
    for member, run in enumerate(runs):
        saved, row = saved_state(run)["member"], rows_of(run)[-1]
        taken = sum(move["member"] == member for _, move in copies)
        assert (saved["round"], saved["copies"]) == (3, taken)
        now = exchange.decided(3)
        assert now is not None
        assert saved["settings"] == now.settings[member]
        assert row[f"pbt/{RATE}"] in [own["settings"][RATE] for entry in entries[1:] for own in entry["members"]]
        assert {"pbt/rounds", "pbt/next_round", "pbt/copies", "pbt/setbacks", "pbt/episodes"} <= row.keys()


def test_whoever_takes_turns_in_whatever_order_the_ledger_and_the_weights_are_the_same(
    tmp_path: Path, whole: tuple[Exchange, list[RunFolder]]
) -> None:
    exchange = exchange_in(tmp_path)
    runs = all_of(tmp_path, [2, 2, 0, 1, 0])  # some come back before their round is decided
    assert exchange.entries() == whole[0].entries()
    for one, two in zip(runs, whole[1], strict=True):
        assert_same(saved_state(one)["learners"], saved_state(two)["learners"])
        assert_same(saved_state(one)["member"], saved_state(two)["member"])


def test_who_takes_over_has_the_weights_of_the_donor_at_the_round(tmp_path: Path) -> None:
    """The round comes with the last frame, so nothing is learnt after it."""
    exchange = exchange_in(tmp_path, period=1600)
    runs = all_of(tmp_path, [0, 1, 2])
    found = exchange.decided(1)
    assert found is not None
    assert found.donors
    for member, donor in found.donors.items():
        (taker,) = saved_state(runs[member])["learners"]
        (theirs,) = load_checkpoint(exchange.checkpoint(1, donor)).state["learners"]
        assert_same(taker["model"], theirs["model"])
        assert_same(taker["optimizer"], theirs["optimizer"])
        assert saved_state(runs[member])["member"]["block"] == [], "no episode of the old weights counts"


def test_who_was_lost_goes_on_where_its_donor_was(tmp_path: Path) -> None:
    exchange = exchange_in(tmp_path, period=1600)
    for member in (0, 1):
        assert not go_on(tmp_path, member)
    exchange.lose(1, 2, 0, "out of memory", again=True)
    assert exchange.decide() == 1
    assert go_on(tmp_path, 2), "nothing is left to be trained"
    found, state = exchange.decided(1), saved_state(RunFolder(tmp_path / "x" / "member-2"))
    assert found is not None
    donor = found.donors[2]
    assert state["sampler"]["steps"] == found.frames[donor]
    assert_same(
        state["learners"][0]["model"], load_checkpoint(exchange.checkpoint(1, donor)).state["learners"][0]["model"]
    )


def test_two_at_the_same_time_need_no_launcher(tmp_path: Path, rollmill: Run) -> None:
    made = Exchange(tmp_path / "x")
    pbt = PbtSettings(members=2, tune={"learning": {"learning_rate": [1e-6, 1e-1]}}, min_episodes=5)
    made.create(About(pbt, {RATE: 1e-3}, 8_000, 0, ["member-0", "member-1"]))
    runs = []
    for member in range(2):
        own = [word for word in small_words(*words(tmp_path, member, 20_000)) if word != "run.name=run"]
        runs.append(rollmill("train", f"run.dir={tmp_path}", "run.experiment=x", *own))
    codes = [run.wait() for run in runs]
    # Whoever is much faster than the start of the other one makes room for it.
    assert set(codes) <= {0, PAUSED}
    for member, code in enumerate(codes):
        if code == PAUSED:
            assert go_on_alone(tmp_path, member)
    assert made.newest == 2


def go_on_alone(folder: Path, member: int) -> bool:
    outcome, _ = train_here(folder, *words(folder, member, 20_000), mode="resume")
    return not outcome.interrupted


# -- refused ---------------------------------------------------------------------------------------------------


def test_a_member_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no population"):
        train_here(tmp_path, *words(tmp_path, 0))
    exchange_in(tmp_path)
    with pytest.raises(ConfigError, match=r"pbt.member=3: .* has 3 members"):
        train_here(tmp_path, *words(tmp_path, 3))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (("learning.algorithm=sac", "env=Pendulum-v1"), "does not go together with learning.algorithm=sac"),
        (("learning.ranks=2",), "use learning.ranks=1"),
    ],
)
def test_what_a_member_cannot_be_is_refused(tmp_path: Path, own: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config_of(tmp_path, *words(tmp_path, 0), *own))


@pytest.mark.parametrize(
    ("settings", "population", "message"),
    [
        ({"stop.frames": 0, "stop.batches": 9}, {}, "say stop.frames, and no other limit"),
        ({"stop.frames": 1000, "stop.seconds": 5}, {}, "say stop.frames, and no other limit"),
        ({"stop.frames": 1000}, {"period": 2000}, "the first round would be at 2,000 frames of each member"),
        ({"stop.frames": 1000}, {"tune": {"learning.gama": [0.9, 0.99]}}, "did you mean .learning.gamma"),
        ({"stop.frames": 1000}, {"tune": {"learning.gamma": 0.9}}, "expected bounds such as"),
        ({"stop.frames": 1000}, {"tune": {"env.variables.level": [0, 1]}}, r"has no such name .* \(it has: none\)"),
    ],
)
def test_a_population_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, object], population: dict[str, object], message: str
) -> None:
    what = Experiment("p", population=PbtSettings(members=4, **population), settings={"env": "toy_target", **settings})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        plan_of(what, tmp_path)
    assert not (tmp_path / "p").exists()
