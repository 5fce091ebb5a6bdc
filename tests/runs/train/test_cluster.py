"""Runs that nodes sample for (``cluster.address=local``): what arrives, what is recorded, and what happens when
something dies.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from node_runs import ENDLESS, MARKER, NODES, RECORDED, Until, both_sample
from running import LIMIT_SECONDS, ROOT, SAC, config_of, train_here, wait_until

from recording import Seen, check_stored
from rollmill.core.errors import ClusterError, ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.distributed.standing import FILE, RunStanding
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.settings.train import check

LOCAL_NODES = ("cluster=local", *NODES)


def kill_gateway(until: Until) -> bool:
    os.kill(until.gateways[-1], signal.SIGKILL)
    return True


def test_what_nodes_have_played_is_learnt_from_counted_and_recorded_once(tmp_path: Path) -> None:
    def told(_: Until) -> bool:
        """The gateway tells how nodes stand now and then; rates are in the row of metrics once it has."""
        file = tmp_path / "x" / "run" / FILE
        return file.exists() and [node.stage for node in RunStanding.read(file.parent).nodes] == ["sampling"] * 2

    seen, until = Seen(), Until(both_sample, told)
    _, folder = train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, *RECORDED, observers=[seen, until])
    assert until.workers == {0, 1, 2}
    assert until.incarnations == {0, 1000, 1001}
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
        return {2000, 2001} <= until.incarnations and until.since > 20

    seen, until = Seen(), Until(both_sample, kill_gateway, again)
    _, folder = train_here(tmp_path, *MARKER, *LOCAL_NODES, *ENDLESS, *RECORDED, observers=[seen, until])
    assert until.row["cluster/gateway_restarts"] == 1
    check_stored(folder.data, seen)
    assert re.search("the gateway .*SIGKILL.*; training goes on", folder.log.read_text())


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
    assert (first.incarnations, second.incarnations) == ({1000}, {2000})
    assert first.workers == second.workers == {0}, "no worker but the node's"
    assert json.loads((folder.path / "cluster.json").read_text())["gateways"] == 2


def test_nodes_that_are_missing_end_the_run_with_their_reason(tmp_path: Path) -> None:
    words = ("cluster=local", "cluster.nodes=1", "cluster.start_timeout=0.2", "env=toy_target", *ENDLESS)
    with pytest.raises(ClusterError, match=r"cluster.nodes=1: 0 sample after cluster.start_timeout=0.2 s; "):
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
