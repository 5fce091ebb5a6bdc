"""Several policies in one run: each learns from its own rows, is judged by its own episodes, and those that are frozen
stay as they are.
"""

from pathlib import Path

import numpy as np
import pytest
from running import SERIAL, assert_same, config_of, rows_of, saved_state, train_here

from rollmill.core.errors import ConfigError
from rollmill.runs.settings.train import check
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

TWO = ("env=toy_agents", "env.policies=[0, 1]", "learning.batch_size=64")
FROZEN = (*TWO, "learning.frozen=[1]", "learning.max_policy_lag=2", "stop.batches=12")


class Stamps(Observer):
    """Which versions of which policies stand in the rows that were learnt from."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for part in run.trajectories():
            self.seen |= set(zip(part.policy_ids.ravel().tolist(), part.versions.ravel().tolist(), strict=True))


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_frozen_policy_stays_as_it_is_and_drops_no_segment(tmp_path: Path, mode: str) -> None:
    """Its version is far behind that of the other one, whose rows stand in the same segments."""
    stamps = Stamps()
    _, begun = train_here(tmp_path / "a", f"sampling.mode={mode}", *FROZEN, "stop.frames=1", observers=[stamps])
    _, folder = train_here(tmp_path / "b", f"sampling.mode={mode}", *FROZEN, observers=[stamps])
    first, last = saved_state(begun)["learners"], saved_state(folder)["learners"]
    assert_same(first[1], last[1])
    assert not np.array_equal(*(np.concatenate([x.ravel() for x in s[0]["model"].values()]) for s in (first, last)))
    assert [learner["version"] for learner in last] == [12, 0]
    assert {version for policy, version in stamps.seen if policy == 1} == {0}
    assert max(version for policy, version in stamps.seen if policy == 0) > 5
    if mode == "serial":  # on a busy machine rows of the policy that learns may be too old as well
        assert saved_state(folder)["dropped_segments"] == 0


def test_every_policy_has_returns_of_its_own(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, *TWO, "stop.frames=800", "report.window=10000")
    row = rows_of(folder)[-1]
    both = [row[f"policy{k}/episode/return"] for k in (0, 1)]
    assert both[0] != both[1]
    assert row["policy0/episode/count"] == row["policy1/episode/count"] == row["episode/count"] / 2
    assert np.mean(both) == pytest.approx(row["episode/return"])


def test_windows_of_policies_survive_a_resume(tmp_path: Path) -> None:
    _, whole = train_here(tmp_path / "whole", *SERIAL, *TWO, "stop.frames=800")
    train_here(tmp_path / "parts", *SERIAL, *TWO, "stop.frames=400")
    _, parts = train_here(tmp_path / "parts", *SERIAL, *TWO, "stop.frames=800", mode="resume")
    assert rows_of(whole)[-1] == rows_of(parts)[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("learning.frozen=[2]", r"learning.frozen=\[2\]: there is no policy 2, env.policies has 2"),
        ("learning.frozen=[0,1]", r"nobody is left who learns"),
    ],
)
def test_frozen_policies_that_make_no_sense_are_refused(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config_of(tmp_path, *TWO, words))
