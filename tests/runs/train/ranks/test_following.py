"""Ranks of other machines: here they are processes that know nothing of each other but an address."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import Run, command_words, config_of, rows_of
from slurm_cluster import free_ports

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.distributed.messages import versions
from rollmill.distributed.ray_place import Place
from rollmill.envs.probe import probe_here
from rollmill.learning.roll_call_leader import Leader
from rollmill.runs.settings.learning_checks import check_ranks
from rollmill.runs.settings.sizing import Machine, resolve
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.ranks.following import join_run
from rollmill.runs.train.ranks.processes import _meeting_place

MEET = ("learning.ranks=3", "learning.device=cpu", "learning.threads=1", "env=toy_target")
SHARED = (*MEET, "sampling.workers=3", "sampling.mode=sync", "learning.batch_size=96")
ENDLESS = ("stop.frames=100000000", "stop.seconds=600", "learning.rank_silence=5", "checkpoints.every_seconds=0")


def test_ranks_that_come_by_themselves_learn_and_go_on_without_one(
    rollmill: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One comes by its command, one as a task of srun; the first is killed, the other one hears how it ends."""
    place = f"127.0.0.1:{free_ports(1)[0]}"
    words = command_words(tmp_path, *SHARED, *ENDLESS, f"learning.meet={place}")
    rank_0, joined = rollmill(*words), rollmill("join-learner", place)
    monkeypatch.setenv("SLURM_PROCID", "2")
    of_slurm = rollmill(*words)
    rank_0.wait_for_text("3 ranks learn")
    rank_0.wait_for_text("checkpoint ", times=3)
    os.kill(joined.process.pid, signal.SIGKILL)
    joined.assert_nothing_left()
    rank_0.wait_for_text("2 of 3 ranks go on: a batch has 64 rows now")
    rank_0.wait_for_text("checkpoint ", times=rank_0.text.count("checkpoint ") + 3)
    rank_0.send(signal.SIGTERM)
    assert rank_0.wait() == 128 + signal.SIGTERM
    assert of_slurm.wait() == 0
    assert f"the run at {place} is over: SIGTERM received" in of_slurm.text
    frames = [row["frames"] for row in rows_of(RunFolder(tmp_path / "x/run"))]
    assert frames == sorted(frames)
    for command in (rank_0, of_slurm):
        command.assert_nothing_left()


# -- what does not fit -----------------------------------------------------------------------------------------


class Host:
    """Rank 0 as others see it before they are admitted."""

    def __init__(self, tmp_path: Path) -> None:
        self.config = config_of(tmp_path, *SHARED, "learning.meet=127.0.0.1:29500")
        self.leader = Leader("127.0.0.1", 0, 2, 30.0)
        self.leader.seats = [1]
        self.place = Place("127.0.0.1", self.leader.port)

    def open(self, **other: Any) -> None:
        spec = probe_here(self.config.env).to_dict()
        run = {"versions": versions(), "config": to_dict(self.config), "spec": spec, "cuda": "gloo"}
        self.leader.open({**run, **other})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.leader.end("", 0.0)


def test_another_version_is_told_before_anything_is_read(host: Host) -> None:
    host.open(versions={**versions(), "torch": "0.1"}, config={"of": "another version"})
    with pytest.raises(ConfigError, match=r"torch \S+ \(the learner has 0\.1\)"):
        join_run(host.place)


def test_rank_0_may_refuse(host: Host) -> None:
    host.open()
    host.leader.refuse = lambda card: f"device {card['versions']['device']} (the learner has cuda)"
    with pytest.raises(ConfigError, match=r"device cpu \(the learner has cuda\)"):
        join_run(host.place)


def test_another_environment_ends_the_run_on_both_sides(host: Host, tmp_path: Path) -> None:
    host.open(spec=probe_here(config_of(tmp_path, "env=toy_reach").env).to_dict())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(host.leader.assemble, 60.0)
        with pytest.raises(ConfigError, match=r"toy_target is another environment on this machine: .*action is"):
            join_run(host.place)
        with pytest.raises(ConfigError, match=r"^rank 1 on \S+ \(pid \d+\) failed: toy_target is another"):
            waiting.result()


def test_a_run_with_ranks_of_its_own_machine_takes_no_others(host: Host) -> None:
    host.leader.open({})
    with pytest.raises(ConfigError, match=r"it needs learning\.meet="):
        join_run(host.place)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("learning.ranks=1",), "set learning.ranks, too"),
        (("learning.meet=somewhere",), "host:port is expected"),
        (("learning.meet=0.0.0.0:29500",), "give one address of this machine"),
        (("env=__main__:Mine",), "is not sent to other machines"),
    ],
)
def test_what_several_machines_cannot_do_is_refused(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_ranks(config_of(tmp_path, *SHARED, "learning.meet=10.0.0.5:29500", *words))


def test_a_name_that_leads_nowhere_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many systems do it: a machine's own name is on its loopback device."""
    monkeypatch.setattr("socket.gethostbyname", {"alpha": "127.0.1.1", "beta": "10.0.0.5"}.__getitem__)
    with pytest.raises(ConfigError, match=r"alpha is 127\.0\.1\.1 on this machine, where no other one reaches it"):
        _meeting_place("alpha:29500")
    assert _meeting_place("beta:29500") == Place("10.0.0.5", 29500)


def test_levels_that_are_drawn_once_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, *SHARED, "learning.meet=10.0.0.5:29500")
    drawn = replace(config.env, levels=replace(config.env.levels, folder=str(tmp_path)))
    with pytest.raises(ConfigError, match="machines cannot tell each other which levels were drawn"):
        check_ranks(replace(config, env=drawn))


# -- shares ------------------------------------------------------------------------------------------------------


def test_each_machine_has_the_workers_of_one() -> None:
    config = TrainConfig()
    learning = replace(config.learning, ranks=4, meet="10.0.0.5:29500")
    here = resolve(config, Machine(cores=8)).sampling.workers
    there = resolve(replace(config, learning=learning), Machine(cores=8)).sampling.workers
    assert there == 4 * here
