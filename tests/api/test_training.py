"""Training from Python: keywords, own environments, one training after the other, interruptions."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from own_envs import corridor_class

import rollmill
from rollmill.core.errors import ConfigError, RunFolderError

QUICK: dict[str, Any] = {
    "sampling": {"workers": 2, "envs_per_worker": 4, "groups": 2, "rollout": 8, "affinity": False},
    "learning": {"batch_size": 32, "minibatches": 1, "epochs": 1},
    "model": {"mlp": [16]},
    "report": {"every_frames": 64, "tensorboard": False, "page": False},
    "checkpoints": {"min_free_mb": 1},
}


def train(folder: Path, env: Any = "toy_target", mode: str = "serial", **more: Any) -> rollmill.Run:
    settings = {**QUICK, "sampling": {**QUICK["sampling"], "mode": mode}, "run": {"dir": str(folder)}}
    return rollmill.train(env, **{"frames": 500, "progress": False, **settings, **more})


def test_a_training_and_what_it_left(tmp_path: Path) -> None:
    run = train(tmp_path, seed=3, overrides={"learning.gamma": 0.5}, recording={"keep": "all", "budget_gb": 0.1})
    assert run.path == tmp_path / "default" / "toy_target-s3"
    assert (run.state, run.reason, run.kind) == ("finished", "reached stop.frames=500", "online")
    assert run.frames >= 500
    assert isinstance(run.config, rollmill.TrainConfig)
    assert (run.config.run.seed, run.config.learning.gamma, run.config.stop.frames) == (3, 0.5, 500)
    metrics = run.metrics()
    assert metrics["frames"].tolist() == sorted(metrics["frames"].tolist())
    assert metrics["episode/return"].shape == (metrics.rows,)
    assert run.data.episodes[0].rewards.shape == (len(run.data.episodes[0]),)
    assert "finished (reached stop.frames=500)" in repr(run)
    assert repr(rollmill.Run(str(run.path))) == repr(run)


def test_settings_from_files_and_objects(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("env: toy_target\nlearning: {gamma: 0.9, clip: 0.15}\n")
    run = train(tmp_path, None, config=file, name="one")
    assert (run.config.learning.gamma, run.config.learning.clip) == (0.9, 0.15)
    again = train(tmp_path, None, config=run.config, name="two", overrides={"learning": {"gamma": 0.7}})
    assert (again.config.learning.gamma, again.config.learning.clip) == (0.7, 0.15)
    assert again.path.name == "two"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"learning": {"gama": 1}}, r"^'learning.gama=1': unknown key 'learning.gama'; did you mean 'learning.gamma'"),
        ({"lerning": {"gamma": 1}}, r"unknown key 'lerning.gamma'; did you mean 'learning.gamma'"),
        ({"env": None}, r"which environment\?"),
        ({"env": 3}, "expected a name, or a callable that makes an environment, got 3"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
    ],
)
def test_what_is_wrong_is_said_in_words_of_python(tmp_path: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rollmill.train(**{"env": "toy_target", "frames": 100, "run": {"dir": str(tmp_path)}, **keywords})
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_there_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    first = train(tmp_path)
    with pytest.raises(RunFolderError, match="continue it with resume=True, delete it with overwrite=True"):
        train(tmp_path)
    assert train(tmp_path, frames=1000, resume=True).frames >= 1000
    assert train(tmp_path, overwrite=True).frames == first.frames


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_an_environment_that_no_module_has(tmp_path: Path, mode: str) -> None:
    own = corridor_class()
    run = train(tmp_path, {"id": lambda length: own(length), "args": {"length": 2}}, mode, name=mode)
    assert run.state == "finished"
    assert run.config.env.id == "__main__:lambda"


def test_the_folder_of_an_own_environment_has_its_name(tmp_path: Path) -> None:
    assert train(tmp_path, corridor_class()).path.name == "Corridor-s0"


def test_what_cannot_be_sent_to_workers_leaves_no_folder(tmp_path: Path) -> None:
    own, lock = corridor_class(), threading.Lock()

    def make() -> Any:
        assert lock
        return own()

    with pytest.raises(ConfigError, match=r"make cannot be sent to worker processes .*sampling.mode=serial"):
        train(tmp_path, make, "async")
    assert not list(tmp_path.iterdir())
    assert train(tmp_path, make, "serial").state == "finished"


class Watching(rollmill.Observer):
    """Notes what happens, and does something after the third step."""

    def __init__(self, then: Any = None) -> None:
        self.steps, self.stopped, self._then = 0, 0, then

    def on_training_step(self, run: Any, iteration: int) -> None:
        self.steps += 1
        if self.steps == 3 and self._then:
            self._then()

    def on_stop(self, run: Any) -> None:
        self.stopped += 1


def test_observers_are_told(tmp_path: Path) -> None:
    watching = Watching()
    train(tmp_path, observers=[watching])
    assert watching.steps > 3
    assert watching.stopped == 1


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_ctrl_c_ends_the_run_in_order_and_returns(tmp_path: Path, mode: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupt = Watching(lambda: os.kill(os.getpid(), signal.SIGINT))
    run = train(tmp_path, mode=mode, frames=10**9, observers=[interrupt])
    assert (run.state, run.reason) == ("interrupted", "SIGINT received")
    assert interrupt.stopped == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert train(tmp_path, mode=mode, frames=run.frames + 200, resume=True).state == "finished"


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, frames=10**9, observers=[Watching(twice)])
    assert rollmill.Run(tmp_path / "default" / "toy_target-s0").state == "interrupted"


def traces() -> dict[str, Any]:
    """What a training could leave in this process and on this machine."""
    own = psutil.Process()
    log = logging.getLogger("rollmill")
    return {
        "children": sorted(child.pid for child in own.children(recursive=True)),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": own.num_fds(),
        "log": (list(log.handlers), log.level, log.propagate),
        "torch": (torch.get_num_threads(), torch.get_float32_matmul_precision()),
        "random": torch.random.get_rng_state().tolist(),
        "cores": os.sched_getaffinity(0),
        "variables": dict(os.environ),
    }


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_one_training_after_the_other_leaves_nothing(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    train(tmp_path, mode=mode, name="warm-up")  # modules, caches, allocators
    before = traces()
    for name in ("one", "two"):
        assert train(tmp_path, mode=mode, name=name).state == "finished"
        assert not list(scratch.iterdir())
    assert traces() == before
    if mode == "serial":
        one, two = (rollmill.Run(tmp_path / "default" / name).metrics() for name in ("one", "two"))
        assert one["learn/loss"].tolist() == two["learn/loss"].tolist(), "the second is not touched by the first"


def test_what_a_script_prints_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import rollmill\n"
        "for name in ('one', 'two'):\n"
        "    rollmill.train('toy_target', frames=2000, name=name, sampling={'mode': 'serial'})\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.count("finished: reached stop.frames=2_000") == 2
    assert "INFO:rollmill" not in done.stderr, "the user's own logging does not show all of it again"


def test_a_training_from_another_thread(tmp_path: Path) -> None:
    runs: list[rollmill.Run] = []
    thread = threading.Thread(target=lambda: runs.append(train(tmp_path)))
    thread.start()
    thread.join()
    assert runs[0].state == "finished"
