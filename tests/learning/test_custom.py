"""A learner of the user's own: what it is given, what it is saved as, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from running import SERIAL, rows_of, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, NonFiniteError, UntrustedCodeError
from rollmill.core.given import give
from rollmill.learning.batch import Batch
from rollmill.learning.custom import CustomLearner, LearnerParts
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.trust import load_saved


class Simple(CustomLearner):
    """Policy gradient with the reward itself as the advantage."""

    def __init__(self, parts: LearnerParts, scale: float = 1.0) -> None:
        super().__init__(parts)
        self.scale = scale

    def learn(self, batch: Batch, progress: float) -> Mapping[str, float]:
        now = self.evaluate(batch)
        steps, lanes = batch.reward.shape
        assert now.log_prob.shape == now.entropy.shape == (steps, lanes)
        assert now.value.shape == (steps + 1, lanes)
        if self.version == 0:  # nothing has changed since these rows were decided
            torch.testing.assert_close(now.log_prob[batch.valid], batch.log_prob[batch.valid])
            torch.testing.assert_close(now.value, batch.value)
        loss = -(self.scale * batch.reward * now.log_prob)[batch.valid].mean()
        return {"loss": loss.item(), "grad_norm": self.step(loss), "progress": progress}


class Infinite(CustomLearner):
    """Divides by zero in its second batch."""

    def learn(self, batch: Batch, progress: float) -> Mapping[str, float]:
        return {"grad_norm": self.step(self.evaluate(batch).value.mean() / (1 - self.version))}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_it_learns_and_resumes_bit_for_bit(tmp_path: Path, memory: str) -> None:
    words = (f"learning.custom={give(Simple)}", "learning.custom_args.scale=2.0", f"model.memory={memory}", *SERIAL)
    whole, folder = train_here(tmp_path / "whole", "env=toy_target", *words, "stop.frames=640")
    assert whole.state == "finished"
    rows = rows_of(folder)
    assert all("learn/loss" in row and "learn/rows" in row for row in rows)
    assert rows[-1]["learn/progress"] > rows[0]["learn/progress"]
    train_here(tmp_path / "parts", "env=toy_target", *words, "stop.frames=320")
    _, again = train_here(tmp_path / "parts", "env=toy_target", *words, "stop.frames=640", mode="resume")
    one, two = (Checkpoints(f.checkpoints).load_newest().state["learners"][0] for f in (folder, again))
    assert one["version"] == two["version"] > 0
    assert all((one["model"][name] == two["model"][name]).all() for name in one["model"])


def test_it_runs_beside_worker_processes(tmp_path: Path) -> None:
    outcome, _ = train_here(tmp_path, "env=toy_target", f"learning.custom={give(Simple)}", "stop.frames=640")
    assert outcome.state == "finished"


def test_what_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"batch 2\): the loss is .*inf"):
        train_here(tmp_path, "env=toy_target", f"learning.custom={give(Infinite)}", *SERIAL)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("learning.custom=nowhere:Mine",), "no module named 'nowhere'"),
        (("learning.custom=Mine",), 'custom must read "module:Class"'),
        (("learning.custom=json:JSONDecoder",), "nothing fitting under the name 'JSONDecoder'"),
        (("learning.custom_args.a=1",), "custom_args are given but custom is not"),
        (("learning.custom=a:B", "learning.ranks=2"), "leave out algorithm and ranks"),
        (("learning.custom=a:B", "learning.algorithm=sac"), "leave out algorithm and ranks"),
        (("learning.custom=a:B", "replay.capacity=10"), "learning.custom is given new segments only"),
        ((f"learning.custom={give(Simple)}", "learning.custom_args.scal=1"), r"\(parts, \*\*custom_args\).*'scal'"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path, "env=toy_target", *words, *SERIAL)


def test_a_checkpoint_does_not_choose_the_code_of_a_training() -> None:
    saved = {"learning": {"custom": "evil:Learner"}, "observers": {"use": ["evil:Observer"]}}
    assert load_saved(TrainConfig, saved, Path("x.ckpt")).learning.custom == "evil:Learner", "acting does not run it"
    with pytest.raises(UntrustedCodeError, match=r"learning.custom=evil:Learner, observers.use=\[\"evil:Observer\"\]"):
        load_saved(TrainConfig, saved, Path("x.ckpt"), trains=True)
    named = ["learning.custom=evil:Learner", "observers.use=[evil:Observer]"]
    load_saved(TrainConfig, saved, Path("x.ckpt"), overrides=named, trains=True)
    assert load_config(TrainConfig, (), named).learning.custom == "evil:Learner"
