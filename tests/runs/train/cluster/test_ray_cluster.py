"""A training whose nodes are those of a real Ray cluster, on loopback: one start of Ray for all that can go wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from node_runs import ENDLESS, MARKER, NODES, RECORDED, Until, both_sample
from ray_cluster import RayCluster, ray_cluster
from running import LIMIT_SECONDS, train_here

from recording import Seen, check_stored
from rollmill.cli.main import main
from rollmill.distributed import supervisor
from rollmill.distributed.membership import INCARNATIONS_EACH
from rollmill.distributed.supervisor import Record
from rollmill.monitor.jsonl import read_jsonl


class Faults(Until):
    """Kills a node in the middle of a run and adds another one; looks at what the status says before and after."""

    def __init__(self, cluster: RayCluster, run: Path) -> None:
        super().__init__(both_sample, self.told, self.kill_node, self.replaced, self.join, self.joined)
        self.cluster, self.run = cluster, run
        self.killed: list[psutil.Process] = []
        self.samplers: list[psutil.Process] = []
        self.maps: list[str] = []
        self.status: dict[str, Any] = {}
        self.imported = False

    def told(self, _: Until) -> bool:
        """The file of the status is written every other second."""
        (self.status,) = self.look()["runs"]
        nodes = self.status["nodes"]
        return [node["stage"] for node in nodes] == ["sampling"] * 2 and all(node["steps"] for node in nodes)

    def kill_node(self, _: Until) -> bool:
        self.imported = "ray" in sys.modules
        node = self.cluster.started[1][0]
        raylet = self.cluster.processes(node)["raylet"]
        self.killed = raylet.children(recursive=True)
        self.samplers = [process for process in self.killed if "node_sampler_main" in " ".join(process.cmdline())]
        self.maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in self.samplers]
        raylet.kill()
        return True

    def replaced(self, _: Until) -> bool:
        """Its supervisor has started it anew, and what it plays is learnt from."""
        return max(self.incarnations) >= INCARNATIONS_EACH + 2 and self.since > 20

    def join(self, _: Until) -> bool:
        self.cluster.release()
        return True

    def joined(self, until: Until) -> bool:
        if not {1, 2, 3} <= until.workers:
            return False
        (status,) = self.look()["runs"]  # the gateway tells it now and then; the last row of metrics says the same
        return [node["stage"] for node in status["nodes"]] == ["sampling"] * 3

    def look(self) -> dict[str, Any]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["cluster", "status", str(self.run), "--json"]) == 0
        found: dict[str, Any] = json.loads(printed.getvalue())
        return found


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the ray extra is not installed")
def test_nodes_of_ray_are_learnt_from_replaced_and_joined_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # another test of this process may have imported it
    with ray_cluster(tmp_path, 2) as cluster:
        assert cluster.listening() == {"127.0.0.1"}
        cluster.hold()
        seen, faults = Seen(), Faults(cluster, tmp_path / "x" / "run")
        words = (f"cluster={cluster.address}", *NODES, "cluster.max_nodes=4")
        _, folder = train_here(tmp_path, *MARKER, *words, *ENDLESS, *RECORDED, observers=[seen, faults])
        assert not faults.imported, "Ray is in the gateway, not in the learner"
        assert faults.samplers
        assert not any("_raylet" in text for text in faults.maps), "nor in a sampler"
        _, alive = psutil.wait_procs(faults.killed, timeout=LIMIT_SECONDS)
        assert not alive, "what the node had started went with it"
        check_stored(folder.data, seen)  # no episode twice
        log = folder.log.read_text()
        assert re.search(r"node \S+ \(seat \d, incarnation 10000[01]\): ", log), "the loss was told"
        nodes = faults.status["nodes"]
        assert {node["incarnation"] for node in nodes} == {INCARNATIONS_EACH, INCARNATIONS_EACH + 1}
        assert all(node["steps"] > 0 and node["lost"] == 0 and node["pack_ratio"] > 1 for node in nodes)
        rows = list(read_jsonl(folder.metrics))
        assert rows[-1]["cluster/nodes"] == 3
        assert rows[-1]["cluster/refused_segments"] == 0
        folders = [Record.read(file).folder for file, _ in cluster.started]
        left = [*faults.left, *cluster.end()]
        _, alive = psutil.wait_procs(left, timeout=LIMIT_SECONDS)
        assert not alive
        assert not any(os.path.exists(folder) for folder in folders)
        assert not list(supervisor.records())
