"""Runs that nodes sample for (``cluster.address=local``): what arrives, what is recorded, and what happens when
something dies.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from node_runs import ENDLESS, MARKER, NODES, RECORDED, Until, both_sample
from running import LIMIT_SECONDS, ROOT, SAC, config_of, rows_of, saved_state, train_here, wait_until

from recording import Seen, check_stored
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ClusterError, ConfigError
from rollmill.core.model_pool import ModelPool
from rollmill.core.process import Child
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import INCARNATION_EPISODES
from rollmill.distributed.membership import INCARNATIONS_EACH
from rollmill.distributed.messages import GatewaySetup, NodeState
from rollmill.distributed.standing import FILE, RunStanding
from rollmill.envs.make import make_env
from rollmill.learning.off_policy import OffPolicyAppo
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig, check
from rollmill.runs.train.cluster import cluster
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer, Trajectory

LOCAL_NODES = ("cluster=local", *NODES)
FIRST = INCARNATIONS_EACH
"""Of the incarnations that a run's first gateway gives."""


def kill_gateway(until: Until) -> bool:
    os.kill(until.gateways[-1], signal.SIGKILL)
    return True


class Agreed(Observer):
    """The status of the run says of its nodes what the metrics say."""

    def __init__(self) -> None:
        self.times = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        cluster = run.cluster
        assert cluster is not None
        news = cluster._nodes
        row = cluster.metrics()
        cluster._save(time.monotonic())
        nodes = [node for node in RunStanding.read(run.folder.path).nodes if node.stage == "sampling"]
        if cluster._nodes is not news:  # news came in between
            return
        for node in nodes:
            told = {"frames_per_s": node.steps_per_s * run.spec.frames_per_step, "mb_per_s": node.mb_per_s}
            told |= {"lag": node.lag, "incarnation": node.incarnation}
            assert {name: row[f"cluster/node{node.seat}/{name}"] for name in told} == told
            assert node.codec == "RMS1"
        assert row["cluster/nodes"] == len(nodes)
        self.times += any(node.steps_per_s and node.mb_per_s for node in nodes)


def test_what_nodes_have_played_is_learnt_from_counted_and_recorded_once(tmp_path: Path) -> None:
    def told(_: Until) -> bool:
        """The gateway tells how nodes stand now and then; rates are in the row of metrics once it has."""
        file = tmp_path / "x" / "run" / FILE
        return file.exists() and [node.stage for node in RunStanding.read(file.parent).nodes] == ["sampling"] * 2

    seen, agreed = Seen(), Agreed()
    until = Until(both_sample, told, lambda _: agreed.times > 0)
    _, folder = train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, *RECORDED, observers=[seen, until, agreed])
    assert until.workers == {0, 1, 2}
    assert until.incarnations == {0, FIRST, FIRST + 1}
    stored = check_stored(folder.data, seen)
    assert {env // 4 for env, *_ in stored} == {0, 1, 2}, "lanes of the learner's worker and of one on each node"
    rows = list(read_jsonl(folder.metrics))
    logged = {re.sub(r"node\d+", "node0", name) for name in rows[-1] if name.startswith("cluster/")}
    explained = set(re.findall(r"^\| `(cluster/[^`]+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    assert logged == explained
    assert rows[-1]["cluster/nodes"] == 2
    assert (rows[-1]["cluster/lost_segments"], rows[-1]["cluster/refused_segments"]) == (0, 0)
    assert {"worker0/return", "worker1/return", "worker2/return"} <= set(rows[-1])
    assert until.count <= until.row["cluster/segments"]
    assert until.left, "there were agents, samplers and workers"
    _, alive = psutil.wait_procs(until.left, timeout=LIMIT_SECONDS)
    assert not alive
    state = json.loads((folder.path / "cluster.json").read_text())
    assert state["gateways"] == 1


def test_a_gateway_that_is_killed_costs_what_was_under_way_and_no_episode_is_played_twice(tmp_path: Path) -> None:
    def again(until: Until) -> bool:
        return {2 * FIRST, 2 * FIRST + 1} <= until.incarnations and until.since > 20

    seen, until = Seen(), Until(both_sample, kill_gateway, again)
    _, folder = train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, *RECORDED, observers=[seen, until])
    assert until.row["cluster/gateway_restarts"] == 1
    check_stored(folder.data, seen)
    assert re.search("the gateway .*SIGKILL.*; training goes on", folder.log.read_text())


def test_a_gateway_that_stands_still_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alive, and silent: nothing but the time since its last word tells."""
    monkeypatch.setattr(cluster, "SILENT_SECONDS", 0.0)
    timeout = 3.0

    def stop_gateway(until: Until) -> bool:
        os.kill(until.gateways[-1], signal.SIGSTOP)
        return True

    def again(until: Until) -> bool:
        return len(until.gateways) > 1 and max(until.incarnations) >= 2 * FIRST

    until = Until(both_sample, stop_gateway, again)
    words = (*MARKER, *LOCAL_NODES, f"cluster.node_timeout={timeout}", *ENDLESS)
    _, folder = train_here(tmp_path, *words, observers=[until])
    said = folder.log.read_text()
    silence = re.search(r"the gateway \(pid (\d+)\) has said nothing for (\d+) s: it is killed", said)
    assert silence is not None
    assert int(silence[1]) == until.gateways[0]
    assert int(silence[2]) >= 3 * timeout
    assert until.row["cluster/gateway_restarts"] >= 1


class LongStep(Observer):
    """Nobody looked at the nodes for longer than the run's patience; then the gateway dies."""

    def __init__(self) -> None:
        self.restarts = -1

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        nodes = run.cluster
        assert nodes is not None
        if self.restarts < 0:
            nodes._last_node -= 10 * LIMIT_SECONDS
            told = nodes._told
            wait_until(lambda: nodes._told > told, what="another word of the gateway")
            self.restarts = nodes.restarts
            assert nodes._child is not None
            nodes._child.end()
        elif nodes.restarts > self.restarts:
            run.stop("the test has seen enough")


def test_a_long_training_step_is_no_silence_of_the_nodes(tmp_path: Path) -> None:
    """They were heard of meanwhile, so the run's patience begins when the gateway dies."""
    alone = ("cluster.local_workers=false", f"cluster.patience={LIMIT_SECONDS}")
    step = LongStep()
    train_here(tmp_path, *MARKER, *LOCAL_NODES, *alone, *ENDLESS, observers=[step])
    assert step.restarts == 0


def test_what_a_gateway_says_and_nobody_understands_ends_the_run(tmp_path: Path) -> None:
    class Break(Observer):
        def on_start(self, run: OnlineRun) -> None:
            def refuse(slot: int, group: int) -> None:
                raise IndexError(f"there is no group {group}")

            run.parts.sampler.admit = refuse  # type: ignore[method-assign]

    with pytest.raises(IndexError, match="there is no group"):
        train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, observers=[Break()])


def test_a_run_that_goes_on_gives_incarnations_that_were_never_given(tmp_path: Path) -> None:
    alone = ("cluster.local_workers=false", "cluster.nodes=1")
    train_here(tmp_path, *MARKER, *LOCAL_NODES, *alone, *ENDLESS, observers=[first := Until(lambda u: u.count > 4)])
    _, folder = train_here(
        tmp_path,
        *MARKER,
        *LOCAL_NODES,
        *alone,
        *ENDLESS,
        observers=[second := Until(lambda u: u.count > 4)],
        mode="resume",
    )
    assert (first.incarnations, second.incarnations) == ({FIRST}, {2 * FIRST})
    assert first.workers == second.workers == {0}, "no worker but the node's"
    assert json.loads((folder.path / "cluster.json").read_text())["gateways"] == 2


def test_a_gateway_that_cannot_be_started_is_tried_again_and_its_numbers_are_on_the_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first the disk is full, then there are no processes left, then all is well."""
    write, written = RunStanding.write, list[int]()
    started, pipes = list[int](), list[Any]()

    def fill(self: RunStanding, folder: Path, durable: bool = True) -> None:
        if durable and not written:
            written.append(0)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, folder, durable)
        if durable:
            written.append(self.gateways)

    def start(module: str, setup: GatewaySetup, *more: Any) -> Child:
        started.append(setup.first_incarnation)
        assert started[-1] == written[-1] * FIRST
        assert json.loads((tmp_path / "x" / "run" / FILE).read_text())["gateways"] == written[-1]
        if len(started) == 1:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return Child(module, setup, *more)

    def pipe() -> Any:
        pipes.append(Pipe())
        return pipes[-1]

    monkeypatch.setattr(RunStanding, "write", fill)
    monkeypatch.setattr(cluster, "Child", start)
    monkeypatch.setattr(cluster, "Pipe", pipe)
    until = Until(both_sample)
    _, folder = train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, observers=[until])
    assert written == [0, 2, 3], "only a start waits for the disk"
    assert started == [2 * FIRST, 3 * FIRST]
    assert until.row["cluster/gateway_restarts"] == 1
    assert [end.closed for ends in pipes[:-1] for end in ends] == [True, True]
    said = re.findall("the gateway cannot be started: (.*); it is tried again", folder.log.read_text())
    assert [why.partition("] ")[2] for why in said] == ["No space left on device", "Resource temporarily unavailable"]


def test_without_its_file_a_run_knows_from_the_checkpoint_which_incarnations_were_given(tmp_path: Path) -> None:
    """Also when a session without nodes came in between."""
    alone = (*MARKER, *LOCAL_NODES, "cluster.nodes=1", *ENDLESS)
    _, folder = train_here(tmp_path, *alone, observers=[Until(lambda u: u.count > 4)])
    (folder.path / FILE).unlink()
    train_here(tmp_path, *MARKER, *ENDLESS, observers=[Played()], mode="resume")
    assert not (folder.path / FILE).exists()
    train_here(tmp_path, *alone, observers=[until := Until(lambda u: u.count > 4)], mode="resume")
    assert until.incarnations - {0} == {2 * FIRST}


class Played(Observer):
    """Which episodes the run's own envs play, by lane."""

    def __init__(self) -> None:
        self.episodes: set[tuple[int, int]] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for trajectory in run.trajectories():
            for k, lane in enumerate(trajectory.lanes):
                self.episodes |= {(lane, int(episode)) for episode in np.unique(trajectory.episodes[:, k])}
        if iteration % 20 == 0:
            run.stop("the test has seen enough")


def test_own_workers_go_on_after_a_session_of_nodes_alone_with_episodes_that_nobody_has_played(tmp_path: Path) -> None:
    alone = (*LOCAL_NODES, "cluster.local_workers=false", "cluster.nodes=1")
    first, away, back = sessions = (Played(), Played(), Played())
    for played, words in zip(sessions, ((), alone, ()), strict=True):
        mode = "new" if played is first else "resume"
        train_here(tmp_path, *MARKER, *words, *ENDLESS, observers=[played], mode=mode)
    lanes = {lane for lane, _ in first.episodes}
    assert {lane for lane, _ in back.episodes} == lanes
    assert not first.episodes & back.episodes
    for lane in lanes:
        assert min(e for where, e in back.episodes if where == lane) > max(e for at, e in first.episodes if at == lane)
    assert min(episode for _, episode in away.episodes) >= FIRST * INCARNATION_EPISODES


class Told(Observer):
    """Turns a variable in the middle; looks at what the episodes of nodes begin with, and at the replay's ratio."""

    def __init__(self) -> None:
        self.levels: dict[int, list[float]] = {}
        """Of the episodes of each lane of a node, in their order."""
        self.progress: dict[int, list[float]] = {}
        self.counts: dict[str, float] = {}
        self.turned = False

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for trajectory in run.trajectories():
            if trajectory.worker:
                self.look(trajectory)
        learner = run.parts.learners[0]
        self.counts = learner.counts()
        assert run.cluster is not None
        own = int(run.parts.sampler._filled.sum())
        if not self.turned and len(self.levels) == 2 * 4:
            run.set_variable("level", 4.0)
            self.turned = True
        elif self.turned and self.counts["inserted"] >= 300 and all(seen[-1] == 4.0 for seen in self.levels.values()):
            assert own + run.cluster.received >= self.counts["inserted"] / 2, "two lanes in a segment"
            run.stop("the test has seen enough")

    def look(self, trajectory: Trajectory) -> None:
        for k, lane in enumerate(trajectory.lanes):
            for row in np.flatnonzero(trajectory.first[:-1, k]):
                level, progress = trajectory.obs["obs"][row, k].tolist()
                self.levels.setdefault(lane, []).append(level)
                self.progress.setdefault(lane, []).append(progress)


def test_replay_pool_and_variables_work_with_nodes(tmp_path: Path) -> None:
    told = Told()
    words = (*LOCAL_NODES, "sampling.workers=1", "learning.targets=vtrace")
    replay = ("replay.capacity=100", "replay.samples_per_insert=3", "pool.every_updates=20", "pool.keep=3")
    env = ("env=variable_env:Dialled", "env.variables.level=1", "env.variables.progress=1")
    _, folder = train_here(tmp_path, *words, *replay, *env, *ENDLESS, observers=[told])
    assert told.turned
    assert told.counts["ratio"] == pytest.approx(3, rel=0.02)
    for seen in told.levels.values():
        assert seen == sorted(seen), "never back to what it was"
        assert set(seen) == {1.0, 4.0}
    for seen in told.progress.values():
        assert seen == sorted(seen)
        assert 0 <= seen[0] < seen[-1] < 1
    models = ModelPool(folder.pool).entries()
    assert len(models) == 3
    assert models[-1].version == told.counts["sampled"] / 4 == saved_state(folder)["learners"][0]["version"]


class Endless(Observer):
    """When its nodes sample, a training step begins that does not end."""

    def __init__(self) -> None:
        self.batches = 0
        self.published: list[float] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        learner, nodes = run.parts.learners[0], run.cluster
        assert isinstance(learner, OffPolicyAppo)
        assert nodes is not None
        if self.published or not nodes.metrics()["cluster/nodes"]:
            return
        self.published.append(nodes.metrics()["cluster/publications"])
        draw = learner.buffer.draw

        def count() -> dict[str, Any]:
            self.batches += 1
            if nodes.metrics()["cluster/publications"] > self.published[0] + 3 and len(self.published) == 1:
                self.published.append(nodes.metrics()["cluster/publications"])
                signal.raise_signal(signal.SIGTERM)
            return draw()

        learner.buffer.draw = count  # type: ignore[method-assign]
        learner.buffer.table.limiter.sampled -= 10**9  # as after a resume, when the table had to fill again


def test_within_a_training_step_of_many_batches_nodes_get_weights_and_signals_are_heard(tmp_path: Path) -> None:
    endless = Endless()
    words = (*LOCAL_NODES, "cluster.nodes=1", "learning.targets=vtrace", "replay.capacity=100")
    outcome, _ = train_here(tmp_path, *MARKER, *words, *ENDLESS, observers=[endless])
    assert outcome.reason == "SIGTERM received"
    assert len(endless.published) == 2
    assert endless.batches > 3


class Judged(Observer):
    """What every batch that is learnt from holds, and what the learner says of it."""

    def __init__(self, lag: int, clock: Path) -> None:
        self.lag, self.clock, self.batches = lag, clock, 0
        clock.write_bytes(bytes(8))
        self.largest = {False: 0, True: 0}
        """Updates that rows of the learner's own worker, and of nodes, were behind."""
        self.counted: tuple[int, int] = (0, 0)

    def on_start(self, run: OnlineRun) -> None:
        learner = run.parts.learners[0]
        train = learner.train

        def judge(batch: Any, progress: float = 0.0) -> dict[str, float]:
            version, valid = learner.version, batch["valid"][:-1]
            lags = version - batch["version"][:-1]
            remote = np.repeat(run._groups >= run.parts.sampler.plan.groups, run.parts.sampler.arena.layout.lanes)
            metrics = train(batch, progress)
            assert metrics["stale_rows"] == (lags > self.lag)[valid].sum()
            assert metrics["policy_lag_max"] <= self.lag
            for where in (False, True):
                rows = lags[valid & (remote == where) & (lags <= self.lag)]
                self.largest[where] = max(self.largest[where], int(rows.max(initial=0)))
            self.batches += 1
            return metrics

        learner.train = judge  # type: ignore[method-assign]

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.clock.write_bytes(iteration.to_bytes(8, "little"))
        if run.dropped_segments >= 4 and self.largest[True] > 0:
            run.write_row()  # rows go by frames: the last one may be from before the fourth
            run.stop("the test has seen enough")

    def on_stop(self, run: OnlineRun) -> None:
        sampler = run.parts.sampler
        assert run.cluster is not None
        came = int(sampler._filled.sum()) + run.cluster.received
        left = len(sampler.finished)
        self.counted = (came, self.batches * run.parts.segments_per_batch + run.dropped_segments + left)


def test_what_a_slow_node_brings_is_fresh_enough_or_dropped_and_counted(tmp_path: Path) -> None:
    clock, lag = tmp_path / "clock", 30
    judged = Judged(lag, clock)
    env = ("env=paced_envs:Behind", f"env.args.clock={clock}", "env.args.updates=60", "env.args.rollout=8")
    words = (*LOCAL_NODES, "cluster.nodes=1", "cluster.publish_seconds=0.01", "sampling.workers=1")
    limit = (f"learning.max_policy_lag={lag}", "learning.batch_size=64")
    _, folder = train_here(tmp_path, *env, *words, *limit, *ENDLESS, observers=[judged])
    assert 0 < judged.largest[True] <= lag
    assert judged.largest[False] <= lag
    assert judged.counted[0] == judged.counted[1], "every segment was learnt from, dropped or left"
    assert rows_of(folder)[-1]["sample/dropped_segments"] >= 4


def test_faults_of_environments_on_a_node_are_counted_and_named_at_the_learner(tmp_path: Path) -> None:
    """Of the node's four, which are 4 to 7 of the run: one raises, one returns None, one hangs, each once."""

    class Wait(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            counts = run.counts()
            if counts["env_faults"] == 2 and counts["worker_restarts"] == 1 and counts["lost_segments"]:
                run.write_row()
                run.stop("the test has seen enough")

    words = (*LOCAL_NODES, "cluster.nodes=1", "sampling.workers=1", "sampling.step_timeout=3")
    deeds = json.dumps({"4": "raise", "5": "none", "6": "hang"})
    env = ("env=faulty_envs:EachOnce", f"env.args.deeds={deeds}", f"env.args.folder={tmp_path}")
    _, folder = train_here(tmp_path, *words, *env, *ENDLESS, observers=[Wait()])
    log = folder.log.read_text()
    where = r"node local-0: .*env {} \(faulty_envs:EachOnce\) {} .*seed \d+, episode 100000\d{{9}}, step \d"
    for number, how in ((0, "failed in step"), (1, "failed in step"), (2, "hangs in step")):  # within the node
        assert re.search(where.format(number, how), log), (number, log)
    row = rows_of(folder)[-1]
    assert (row["sample/env_faults"], row["sample/worker_restarts"], row["cluster/lost_segments"]) == (2, 1, 0)


def test_nodes_that_are_missing_end_the_run_with_their_reason(tmp_path: Path) -> None:
    words = ("cluster=local", "cluster.nodes=1", "cluster.start_timeout=0.2", "env=toy_target", *ENDLESS)
    with pytest.raises(ClusterError, match=r"cluster.nodes=1: 0 sample after cluster.start_timeout=0.2 s; "):
        train_here(tmp_path, *words)


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (None, "no other node is there"),
        (("starting", ""), "gamma starting"),
        (("refused", "it has torch 1.0 (the learner has 2.0)"), "gamma refused: it has torch 1.0"),
    ],
)
def test_two_nodes_of_three_end_the_run_with_what_is_said_of_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: tuple[str, str] | None, said: str
) -> None:
    told = [("alpha", "sampling", ""), ("beta", "sampling", ""), *([("gamma", *third)] if third else [])]
    nodes = [
        NodeState(*(name, seat, FIRST + seat, *how), 0, 0, 0, 0.0, 0.0, 0) for seat, (name, *how) in enumerate(told)
    ]

    def tell(self: cluster.Cluster) -> bool:
        """In the place of a gateway."""
        self._take_state(replace(cluster.NOTHING, nodes=tuple(nodes)))
        return True

    monkeypatch.setattr(cluster.Cluster, "_try_to_spawn", tell)
    words = ("cluster=local", "cluster.nodes=3", "cluster.start_timeout=0.2", "env=toy_target", *ENDLESS)
    beginning = r"cluster.nodes=3: 2 sample after cluster.start_timeout=0.2 s; "
    with pytest.raises(ClusterError, match=beginning + re.escape(said)):
        train_here(tmp_path, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster=local", "sampling.mode=serial"), "needs sampling.mode=async"),
        (("cluster=local", "learning.ranks=2"), "use learning.ranks=1"),
        (("cluster=local", *SAC), "does not know learning.algorithm=sac"),
        (("cluster.local_workers=false",), "nobody would sample"),
        (("cluster=local", "cluster.nodes=3", "cluster.max_nodes=2"), "must be between"),
        (("cluster=local", "cluster.nodes=501"), "at most 500"),
    ],
)
def test_what_nodes_cannot_do_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(config_of(tmp_path, *words))


@pytest.mark.parametrize("task", ["env=CartPole-v1", "env=toy_image"])
def test_resolved_settings_differ_in_those_of_the_cluster_only(tmp_path: Path, task: str) -> None:
    """What is decided for a run without nodes is decided for one with nodes, wherever they are."""
    words = ["run.name=run", f"run.dir={tmp_path}", task]
    spec = make_env(load_config(TrainConfig, [], words).env).spec

    def resolved(*more: str) -> dict[str, Any]:
        config = size(load_config(TrainConfig, [], [*words, *more]), spec)
        check(config)
        return to_dict(config)

    alone = resolved()
    for more in (("cluster=local", "cluster.nodes=2"), ("cluster=10.0.0.5:6379",), ("cluster=auto",)):
        other = resolved(*more)
        assert {name for name in alone if alone[name] != other[name]} == {"cluster"}
    left = resolved("cluster=local", "cluster.local_workers=false")
    assert {name for name in alone if alone[name] != left[name]} == {"cluster"}, "sampling.workers is that of a node"


def test_without_an_address_nothing_of_a_cluster_is_loaded_and_no_slot_is_added(tmp_path: Path) -> None:
    """In a process of its own: what is loaded says what a run costs."""
    program = (
        "import sys, running; from pathlib import Path; from rollmill.runs.train.observers import Observer\n"
        "class Look(Observer):\n"
        "    def on_stop(self, run):\n"
        "        plan = run.parts.sampler.plan\n"
        "        assert run.cluster is None and (plan.remote_slots, plan.remote_groups, plan.idle) == (0, 0, False)\n"
        f"running.train_here(Path({str(tmp_path)!r}), 'env=toy_target', 'stop.batches=2', observers=[Look()])\n"
        "loaded = [n for n in sys.modules if n.split('.')[0] == 'ray' or n.startswith('rollmill.distributed.')]\n"
        "print(sorted(loaded))\n"
    )
    paths = os.pathsep.join([str(ROOT / "tests/support"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kept = {"membership", "messages", "ray_place", "settings", "standing", "weight_buffer"}
    assert done.stdout.splitlines()[-1] == str([f"rollmill.distributed.{name}" for name in sorted(kept)])


def test_nothing_of_a_learner_that_is_killed_stays(tmp_path: Path) -> None:
    program = (
        "import running; from pathlib import Path\n"
        f"running.train_here(Path({str(tmp_path)!r}), *{(*MARKER, *LOCAL_NODES, *ENDLESS)!r})\n"
    )
    paths = os.pathsep.join([str(ROOT / "tests/support"), str(ROOT / "src")])
    learner = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths})
    folder = RunFolder(config_of(tmp_path).folder)

    def sampling() -> bool:
        found = folder.path / "cluster.json"
        nodes = json.loads(found.read_text())["nodes"] if found.exists() else []
        return len(nodes) == 2 and all(node["stage"] == "sampling" for node in nodes)

    wait_until(sampling, what="both nodes to sample")
    below = psutil.Process(learner.pid).children(recursive=True)
    learner.kill()
    learner.wait()
    _, alive = psutil.wait_procs(below, timeout=LIMIT_SECONDS)
    assert not alive
