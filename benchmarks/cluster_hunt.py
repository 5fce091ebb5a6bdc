"""The treasure hunt on nodes that die and join, against one machine (``cluster.py`` runs it)."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from cluster_run import QUIET, Leftovers, segments_of, show, training
from common import Marks
from curves import welch
from ray_cluster import ray_cluster
from treasure_hunt import play

from rollmill import Run

COUNTS = range(6)
"""Numbers of treasures that are trained with."""
EPISODES = 50
EVENTS = (0.25, 0.5, 0.6)
"""Shares of the frames at which one node dies, another one dies, a third one joins."""
NOISE = 0.1
SETTINGS = ("-f", "treasure_hunt", "sampling.mode=async", "learning.batch_size=6144", *QUIET)


def hunt(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Mean scores over all numbers of treasures, after the same number of frames."""
    left = Leftovers()
    scores: dict[str, list[float]] = {"one machine": [], "nodes": []}
    details: dict[str, Any] = {}
    for seed in options.seeds:
        words = (*SETTINGS, f"run.seed={seed}", f"stop.frames={options.frames}", "stop.seconds=0")
        place = folder / f"nodes{seed}"
        details[f"nodes{seed}"] = _on_nodes(place, words, options.frames)
        scores["nodes"].append(_score(place / "default" / "run"))
        place = folder / f"one{seed}"
        with training(place, "run", *words, "sampling.workers=3") as run:
            assert run.process.wait() == 0, run.output()
        scores["one machine"].append(_score(run.folder))
        show({name: values[-1] for name, values in scores.items()})
    left.judge(marks)
    middle = {name: statistics.mean(values) for name, values in scores.items()}
    wanted = (1 - NOISE) * middle["one machine"]
    marks.at_least("mean score on nodes, against nine tenths of that on one machine", middle["nodes"], wanted)
    if len(options.seeds) > 1:
        gap, _, limit = welch(scores["nodes"], scores["one machine"])
        marks.at_least("score on nodes - on one machine, noise being less than", gap, -limit)
    return {"scores": scores, "nodes": details}


def _on_nodes(folder: Path, words: tuple[str, ...], frames: int) -> dict[str, Any]:
    """A training on three nodes, of which two die for good; another one joins."""
    with ray_cluster(folder, 3) as cluster:
        cluster.hold()
        nodes = (f"cluster={cluster.address}", "cluster.nodes=3", "cluster.local_workers=false", "sampling.workers=1")
        with training(folder, "run", *words, *nodes) as run:
            run.until("three nodes", run.sampling(3))

            def passed(share: float) -> bool:
                return bool(run.rows()) and run.rows()[-1]["frames"] >= share * frames

            seen = [len(run.incarnations())]
            for share, nodes_then in zip(EVENTS, (2, 1, 2)):
                run.until(f"{share:.0%} of the frames", lambda share=share: passed(share), seconds=1e6)
                if nodes_then > seen[-1]:
                    cluster.release()
                else:
                    cluster.lose(1)  # 0 is the head
                run.until("as many nodes as there are", run.sampling(nodes_then))
                seen.append(nodes_then)
                show({"frames": run.rows()[-1]["frames"], "nodes": seen[-1]})
            standing = run.told()
            assert run.process.wait() == 0, run.output()
    return {
        "nodes that sampled": seen,
        "segments": segments_of(standing),
        "minutes": run.rows()[-1]["time/seconds"] / 60,
    }


def _score(folder: Path) -> float:
    """Mean score of the last weights."""
    agent = Run(folder).policy(device="cpu")
    return statistics.mean(play(agent.act, count, EPISODES)["score"] for count in COUNTS)
