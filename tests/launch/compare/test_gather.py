"""Which runs are compared, and what their groups are called."""

from __future__ import annotations

from pathlib import Path

from experimenting import online, write_run

from rollmill.core.run_kind import run_kind
from rollmill.launch.compare.gather import LONGEST_NAME, find_runs


def groups(folder: Path) -> dict[str, str]:
    return {run.name: run.group for run in find_runs(folder)[0]}


def test_runs_that_were_started_one_by_one_are_grouped_by_what_differs(tmp_path: Path) -> None:
    for gamma, rate, seed in [(g, r, s) for g in (0.9, 0.99) for r in (1, 2) for s in range(2)]:
        settings = online(seed, learning={"gamma": gamma, "learning_rate": rate}, model={"mlp": [64]})
        write_run(tmp_path / f"run-{gamma}-{rate}-{seed}", settings, [1.0])
    assert set(groups(tmp_path).values()) == {
        *("gamma-0.9_learning_rate-1", "gamma-0.9_learning_rate-2"),
        *("gamma-0.99_learning_rate-1", "gamma-0.99_learning_rate-2"),
    }
    found = next(run for run in find_runs(tmp_path)[0] if run.name == "run-0.99-2-1")
    assert found.params == {"learning.gamma": 0.99, "learning.learning_rate": 2, "run.seed": 1}


def test_a_group_of_one_run_is_called_as_the_run_is(tmp_path: Path) -> None:
    write_run(tmp_path / "wide", online(model={"mlp": [256]}), [1.0])
    write_run(tmp_path / "tuned", online(learning={"gamma": 0.98, "epochs": 4}), [1.0])
    assert groups(tmp_path) == {"wide": "wide", "tuned": "tuned"}


def test_as_few_settings_as_tell_a_group_from_the_others_name_it(tmp_path: Path) -> None:
    """A file of settings changes many keys at once; a person would name one of them."""
    plain = {"learning": {"gamma": 0.99, "epochs": 1, "batch_size": 64}, "model": {"mlp": [64]}}
    tuned = {"learning": {"gamma": 0.98, "epochs": 4, "batch_size": 512}, "model": {"mlp": [64]}}
    wide = {"learning": {"gamma": 0.99, "epochs": 1, "batch_size": 64}, "model": {"mlp": [256]}}
    for name, settings in (("plain", plain), ("tuned", tuned), ("wide", wide)):
        for seed in range(2):
            write_run(tmp_path / f"{name}{seed}", online(seed, **settings), [1.0])
    found = groups(tmp_path)
    assert found["tuned0"] == found["tuned1"] == "gamma-0.98"
    assert found["wide0"] == "mlp-256"
    assert found["plain0"] == "gamma-0.99_mlp-64"


def test_an_empty_value_has_a_name(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"all{seed}", online(seed, data={"filter": []}), [1.0])
        write_run(tmp_path / f"some{seed}", online(seed, data={"filter": ["top=10%"]}), [1.0])
    assert groups(tmp_path)["all0"] == "filter-none"


def test_names_are_short_and_hold_no_checksums(tmp_path: Path) -> None:
    for k in range(2):
        for seed in range(2):
            args = {"path": f"/a/very/long/path/to/levels/that/nobody/wants/to/read/in/a/name/{k}"}
            settings = {"run": {"seed": seed}, "env": {"id": "maze", "args": args}}
            write_run(tmp_path / f"level{k}-{seed}", settings, [1.0])
    assert sorted(set(groups(tmp_path).values())) == ["level0-0 and 1 more", "level1-0 and 1 more"]
    assert all(len(name) <= LONGEST_NAME for name in groups(tmp_path).values())


def test_only_what_differs_within_an_environment_counts(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"pole{seed}", online(seed, learning={"gamma": 0.9}), [1.0])
        write_run(tmp_path / f"doom{seed}", online(seed, env="doom_basic", learning={"gamma": 0.99}), [1.0])
    found = groups(tmp_path)
    assert found["pole0"] == found["pole1"] == found["doom0"] == tmp_path.name
    assert all(list(run.params or ()) == ["run.seed"] for run in find_runs(tmp_path)[0])


def test_what_a_run_writes_down_does_not_make_it_another_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(0, report={"console_seconds": 1.0}, evaluation={"episodes": 9}), [1.0])
    write_run(tmp_path / "b", online(1, report={"console_seconds": 5.0}, checkpoints={"keep_last": 1}), [1.0])
    assert len(set(groups(tmp_path).values())) == 1


def test_settings_of_an_unknown_program_are_those_of_an_online_run() -> None:
    assert run_kind({}) == "online"
    assert run_kind({"learning": {}, "algorithm": "mine"}) == "online"
