"""The same rules in the table of the terminal, in CSV files and in JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from experimenting import online, write_run

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.launch.compare.aggregate import aggregate
from rollmill.launch.compare.export import text, to_dict, write_csv
from rollmill.launch.compare.methods import read_references
from rollmill.launch.compare.statistics import iqm


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Three groups, of five, two and one seeds; seeds end one row after another."""
    for gamma, count in ((0.99, 5), (0.9, 2), (0.5, 1)):
        for seed in range(count):
            values = [gamma * 100 + 10 * seed] * (20 + seed)
            write_run(tmp_path / "exp" / f"g{gamma}s{seed}", online(seed, learning={"gamma": gamma}), values)
    return tmp_path / "exp"


def test_the_table_of_the_terminal(experiment: Path) -> None:
    lines = text(aggregate(experiment)).splitlines()
    assert lines[0] == "CartPole-v1: episode/return, mean of the last tenth, highest first"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["gamma-0.99", "gamma-0.9", "g0.5s0"]
    assert lines[2].split() == ["gamma-0.99", "n", "=", "5", "119", "200", "±", "19.6"]
    assert lines[3].split() == ["gamma-0.9", "n", "=", "2", "95", "200", "90", "to", "100"]
    assert lines[4].split() == ["g0.5s0", "n", "=", "1", "50", "200", "-"]
    assert "share of the differences that goes with one parameter:" in lines
    assert "learning.gamma (best: 0.99)" in lines[-1]


def test_what_cannot_be_told_is_a_sentence_and_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(learning={"gamma": 0.9}), [1.0])
    write_run(tmp_path / "b", online(learning={"gamma": 0.8}), [])
    shown = text(aggregate(tmp_path))
    assert "no value yet" in shown
    assert "lowest to highest" not in shown, "there is no group of several"
    write_run(tmp_path / "c", online(learning={"gamma": 0.7}), [3.0])
    assert "2 groups of runs cannot tell which parameter matters" in text(aggregate(tmp_path))


def test_csv_files(experiment: Path, tmp_path: Path) -> None:
    curves, runs, groups = write_csv(aggregate(experiment), tmp_path / "out")
    rows = list(csv.DictReader(curves.open()))
    assert len(rows) == 3 * 200
    assert {(row["group"], row["runs"], row["spread"]) for row in rows} == {
        ("gamma-0.99", "5", "confidence"),
        ("gamma-0.9", "2", "range"),
        ("g0.5s0", "1", "none"),
    }
    last = {row["group"]: row for row in rows}
    assert (last["gamma-0.9"]["frames"], last["gamma-0.9"]["mean"]) == ("200", "95"), "the first seed ends there"
    assert (last["gamma-0.9"]["low"], last["gamma-0.9"]["high"]) == ("90", "100")
    assert last["g0.5s0"]["low"] == ""
    table = list(csv.DictReader(runs.open()))
    assert len(table) == 8
    assert (table[0]["environment"], table[0]["learning.gamma"], table[0]["run.seed"]) == ("CartPole-v1", "0.99", "0")
    assert [(row["runs"], row["low"]) for row in csv.DictReader(groups.open())][1:] == [("2", "90"), ("1", "")]
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be written"):
        write_csv(aggregate(experiment), tmp_path / "file")


def test_json(experiment: Path) -> None:
    found = json.loads(json.dumps(to_dict(aggregate(experiment))))
    (family,) = found["families"]
    assert (family["environment"], family["kind"], family["lower_is_better"]) == ("CartPole-v1", "online", False)
    five, two, one = family["groups"]
    assert (five["n"], five["spread"], two["spread"], one["spread"]) == (5, "confidence", "range", "none")
    assert (two["score"], two["low"], two["high"], two["frames"]) == (95, 90, 100, 200)
    assert one["low"] is None
    assert family["importance"][0]["param"] == "learning.gamma"


def two_environments(folder: Path) -> Path:
    """Gamma 0.9 is worse by 100 in one environment and by 2 in the other; only 0.5 lacks the second one."""
    for gamma, pole, acrobot in ((0.99, 500.0, -80.0), (0.9, 400.0, -82.0), (0.5, 9.0, None)):
        for env, value in (("CartPole-v1", pole), ("Acrobot-v1", acrobot)):
            for seed in range(3 if value is not None else 0):
                settings = online(seed, env, learning={"gamma": gamma})
                write_run(folder / f"{env}g{gamma}s{seed}", settings, [(value or 0.0) - seed] * 20)
    return folder


def test_methods_over_several_environments(tmp_path: Path) -> None:
    (across,) = to_dict(aggregate(two_environments(tmp_path)))["across"]
    assert across["tasks"] == ["Acrobot-v1", "CartPole-v1"]
    first, second = across["methods"]
    assert (first["method"], first["runs"], second["method"]) == ("gamma-0.99", 6, "gamma-0.9"), "0.5 lacks one"
    assert second["best_is_better"]["value"] == pytest.approx((1 + 8.5 / 9) / 2), "one pair of nine is a draw"
    assert first["iqm"]["low"] <= first["iqm"]["value"] <= first["iqm"]["high"] <= 1
    assert len(first["profile"]["value"]) == len(across["thresholds"])
    assert "2 environments, scores from 0 to 1" in text(aggregate(tmp_path))


def test_references_put_environments_on_one_scale(tmp_path: Path) -> None:
    experiment, file = two_environments(tmp_path / "exp"), tmp_path / "references.yaml"
    file.write_text("CartPole-v1: [0, 500]\nAcrobot-v1: [-500, 0]\n")
    (across,) = to_dict(aggregate(experiment, references=read_references(file)))["across"]
    every = [(500 - k) / 500 for k in range(3)] + [(420 - k) / 500 for k in range(3)]
    assert across["methods"][0]["iqm"]["value"] == pytest.approx(float(iqm(np.array(every))))
    with pytest.raises(ConfigError, match="the references lack CartPole-v1"):
        aggregate(experiment, references={"Acrobot-v1": (-500.0, 0.0)})
    for wrong in ("[1, 1]", "[1]", "5", "[a, 2]"):
        file.write_text(f"CartPole-v1: {wrong}\n")
        with pytest.raises(ConfigError, match="two different numbers"):
            read_references(file)


def test_statistics_of_losses_rank_the_lowest_first(tmp_path: Path) -> None:
    for rate, value in ((0.1, 5.0), (0.2, 1.0)):
        for seed in range(5):
            settings = online(seed, learning={"rate": rate})
            write_run(tmp_path / f"{rate}{seed}", settings, [value + seed] * 20, metric="learner/loss")
    (family,) = to_dict(aggregate(tmp_path, "learner/loss"))["families"]
    first, second = family["statistics"]["methods"]
    assert (first["method"], first["iqm"]["value"]) == ("rate-0.2", 3.0)
    assert second["best_is_better"]["value"] == pytest.approx(24.5 / 25)
    assert (first["profile"]["value"][0], first["profile"]["value"][-1]) == (0.0, 1.0), "none is below the lowest"
