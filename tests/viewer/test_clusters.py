"""Runs with nodes as the server tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
from viewing import cluster_run, serving


def test_nodes_metrics_and_what_the_log_says(tmp_path: Path) -> None:
    cluster_run(tmp_path / "runs" / "cl" / "two")
    with serving(tmp_path / "runs") as server:
        found = server.ask(f"/api/cluster?run={server.id_of('cl/two')}").json
    assert "cluster/node1/lag" in found["metrics"]
    assert not [name for name in found["metrics"] if not name.startswith("cluster/")]
    assert [(node["node"], node["seat"], node["stage"]) for node in found["nodes"]] == [("local-0", 0, "sampling")]
    assert [line.split(" ", 3)[-1].strip() for line in found["log"]] == [
        "node local-1 samples (seat 1, incarnation 1001)",
        "node local-1 is gone",
    ]


def test_a_damaged_file_of_nodes_is_said(tmp_path: Path) -> None:
    run = cluster_run(tmp_path / "runs" / "cl" / "two")
    with serving(tmp_path / "runs") as server:
        address = f"/api/cluster?run={server.id_of('cl/two')}"
        (run / "cluster.json").write_text("{")
        assert "cluster.json is damaged" in server.ask(address).json["problem"]
        (run / "cluster.json").unlink()
        assert server.ask(address).json["problem"] == "there is no cluster.json yet"
        (run / "cluster.json").symlink_to("/etc/passwd")
        assert server.ask(address).code == 422
        (run / "cluster.json").unlink()
        (run / "log.txt").unlink()
        (run / "log.txt").symlink_to("/etc/passwd")
        assert server.ask(address).code == 422
