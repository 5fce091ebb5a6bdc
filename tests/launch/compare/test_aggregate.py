"""Means over seeds that do not jump, spreads that say something, and metrics whose lowest value is the best."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from experimenting import offline, online, write_run
from hypothesis import given
from hypothesis import strategies as st
from offlining import hand_episode, hand_store

from rollmill.core.errors import LaunchError
from rollmill.launch.compare.aggregate import (
    aggregate,
    band,
    common,
    lower_is_better,
    score,
    spread_of,
    t975,
)
from rollmill.launch.progress import Curve


def seeds(folder: Path, *curves: list[float], **more: int) -> None:
    """Runs of one group."""
    for k, values in enumerate(curves):
        write_run(folder / f"run-s{k}", online(k), values, **more)  # type: ignore[arg-type]


# -- means over seeds ------------------------------------------------------------------------------------------


def test_the_mean_ends_where_the_first_seed_ends(tmp_path: Path) -> None:
    """Runs end at slightly different frames; a mean over those that are left would jump to them at the end."""
    seeds(tmp_path, [100.0] * 20, [400.0] * 21, [700.0] * 22)
    (group,) = aggregate(tmp_path).families[0].groups
    assert group.frames[-1] == 200
    assert set(group.mean.round(6)) == {400.0}
    assert group.count == 3
    assert (group.score, group.score_low, group.score_high) == (400, 100, 700)


def test_the_mean_begins_where_the_last_seed_begins(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(0), [0.0] * 10, first=10)
    write_run(tmp_path / "b", online(1), [10.0] * 10, first=50)
    (group,) = aggregate(tmp_path).families[0].groups
    assert (group.frames[0], group.frames[-1]) == (50, 100)
    assert set(group.mean) == {5.0}


def test_seeds_without_common_frames_have_no_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(0), [0.0] * 3, first=10)
    write_run(tmp_path / "b", online(1), [10.0] * 3, first=50)
    (group,) = aggregate(tmp_path).families[0].groups
    assert len(group.frames) == len(group.mean) == 0
    assert group.score is None


def test_a_run_without_values_is_left_out_and_not_counted(tmp_path: Path) -> None:
    seeds(tmp_path, [1.0, 1.0], [3.0, 3.0], [])
    (group,) = aggregate(tmp_path).families[0].groups
    assert (group.count, len(group.runs), group.score) == (2, 3, 2.0)


def test_a_run_that_ended_early_is_compared_with_the_others_at_its_end(tmp_path: Path) -> None:
    """A score is a mean over the same frames for all runs of the group."""
    seeds(tmp_path, [float(k) for k in range(1, 101)], [float(k) for k in range(1, 11)])
    (group,) = aggregate(tmp_path).families[0].groups
    assert [run.score for run in group.runs] == [9.5, 9.5]
    assert group.frames[-1] == 100


# -- spreads ---------------------------------------------------------------------------------------------------


def test_few_seeds_give_lowest_and_highest_and_five_a_confidence_interval(tmp_path: Path) -> None:
    values = [100.0, 200.0, 300.0, 400.0, 500.0]
    for count, spread in ((1, "none"), (2, "range"), (4, "range"), (5, "confidence")):
        folder = tmp_path / str(count)
        seeds(folder, *([value] * 10 for value in values[:count]))
        (group,) = aggregate(folder).families[0].groups
        assert group.spread == spread_of(count) == spread
        if spread == "none":
            assert (group.score_low, group.score_high) == (None, None)
            assert np.isnan(group.low).all()
        if spread == "range":
            assert (group.score_low, group.score_high) == (100, values[count - 1])
            assert set(group.high) == {values[count - 1]}, "the curve has the same spread as the score"
        if spread == "confidence":
            half = t975(4) * np.std(values, ddof=1) / math.sqrt(5)
            assert group.score_low == pytest.approx(300 - half)
            assert group.high[0] == pytest.approx(300 + half)


@given(st.lists(st.lists(st.floats(-100, 100), min_size=5, max_size=5), min_size=2, max_size=8))
def test_bands_agree_with_numpy(rows: list[list[float]]) -> None:
    values = np.array(rows)
    mean, low, high = band(values)
    n = len(rows)
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-9)
    if n < 5:
        np.testing.assert_array_equal((low, high), (values.min(axis=0), values.max(axis=0)))
    else:
        half = t975(n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
        np.testing.assert_allclose(high - mean, half, atol=1e-6)
        np.testing.assert_allclose(mean - low, half, atol=1e-6)


def test_places_are_where_all_curves_are() -> None:
    frames, values = common([Curve([10, 20, 30], [1, 2, 3]), Curve([10, 20], [3, 4])], points=3)
    assert list(frames) == [10, 15, 20]
    assert values.tolist() == [[1, 1.5, 2], [3, 3.5, 4]]
    assert [len(part) for part in common([Curve([1], [1]), Curve([2], [1])])] == [0, 2]
    assert [len(part) for part in common([])] == [0, 0]


def test_quantiles_of_student() -> None:
    known = {1: 12.706, 4: 2.776, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}
    assert {n: round(t975(n), 3) for n in known} == known
    with pytest.raises(ValueError, match="degree of freedom"):
        t975(0)


def test_scores() -> None:
    curve = Curve([10, 50, 100], [1, 2, 4])
    assert score(curve, 100) == 4
    assert score(curve, 80) == pytest.approx(3.2), "no row in the last tenth: what lies between two"
    assert score(curve, 5) is None
    assert score(Curve([], []), 5) is None


# -- what is best ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["validation/loss", "learn/policy_loss", "validation/pixel_error", "sample/env_faults"]
)
def test_names_whose_lowest_value_is_best(name: str) -> None:
    assert lower_is_better(name)


@pytest.mark.parametrize("name", ["episode/return", "eval/return", "episode/length", "time/frames_per_s", "a/glossy"])
def test_names_whose_highest_value_is_best(name: str) -> None:
    assert not lower_is_better(name)


def test_groups_are_ranked_by_what_is_better(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        write_run(tmp_path / name, online(learning={"gamma": value}), [value] * 5, metric="learn/value_loss")

    def ranked(**options: bool) -> list[str]:
        return [group.name for group in aggregate(tmp_path, "learn/value_loss", **options).families[0].groups]

    assert ranked() == ["a", "c", "b"], "a loss"
    for path in tmp_path.glob("*/metrics.jsonl"):
        path.write_text(path.read_text().replace("learn/value_loss", "episode/length"))
    long = [group.name for group in aggregate(tmp_path, "episode/length").families[0].groups]
    short = [group.name for group in aggregate(tmp_path, "episode/length", lower=True).families[0].groups]
    assert long == list(reversed(short)) == ["b", "c", "a"]


# -- what is compared ------------------------------------------------------------------------------------------


def test_environments_are_never_ranked_together(tmp_path: Path) -> None:
    write_run(tmp_path / "pole", online(), [500.0] * 3)
    write_run(tmp_path / "doom", online(env="doom_basic"), [80.0] * 3)
    store = hand_store(tmp_path / "data" / "x", [hand_episode(0, [1.0])])
    write_run(tmp_path / "dt", offline(store.path), [2.0, 1.0], metric="validation/loss")
    found = aggregate(tmp_path)
    assert [(family.title, family.metric, len(family.runs)) for family in found.families] == [
        ("CartPole-v1", "episode/return", 1),
        ("doom_basic", "episode/return", 1),
        ("hand, learnt offline", "validation/loss", 1),
    ]
    assert [family.unit for family in found.families] == ["frames", "frames", "updates"]
    assert all(not family.shares.items for family in found.families)


def test_offline_runs_are_compared_by_return_where_all_of_them_were_evaluated(tmp_path: Path) -> None:
    for name, metric in (("a", "eval/return"), ("b", "validation/loss")):
        write_run(tmp_path / name, offline(tmp_path / "gone"), [1.0], metric=metric)
    assert aggregate(tmp_path).families[0].metric == "validation/loss"
    write_run(tmp_path / "only" / "a", offline(tmp_path / "gone"), [1.0], metric="eval/return")
    (family,) = aggregate(tmp_path / "only").families
    assert (family.metric, family.title) == ("eval/return", "environment not known, learnt offline")


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(), [1.0])
    write_run(tmp_path / "b", online(), [1.0])
    (tmp_path / "b" / "config.yaml").write_text("env: [")
    found = aggregate(tmp_path)
    assert [run.name for family in found.families for run in family.runs] == ["a"]
    ((name, why),) = found.others
    assert name == "b"
    assert why.startswith("unreadable: ")
    assert "config.yaml" in why
    (tmp_path / "a" / "config.yaml").write_text("env: [")
    with pytest.raises(LaunchError, match=r"there are no runs in it.*; a: unreadable: .*; b: unreadable: "):
        aggregate(tmp_path)


def test_world_models_are_named_and_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", online(), [1.0])
    write_run(tmp_path / "w", {"seed": 0, "collect": {}, "dynamics": {}, "controller": {}}, [])
    assert aggregate(tmp_path).others == [("w", "world")]
    write_run(tmp_path / "only" / "w", {"seed": 0, "collect": {}, "dynamics": {}, "controller": {}}, [])
    with pytest.raises(LaunchError, match="only world models"):
        aggregate(tmp_path / "only")


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no runs in it"):
        aggregate(tmp_path)
    write_run(tmp_path / "a", online(), [])
    with pytest.raises(LaunchError, match="no run has a value to compare yet; their metrics are: none yet"):
        aggregate(tmp_path)
    write_run(tmp_path / "b", online(1), [1.0])
    with pytest.raises(LaunchError, match=r"no run has the metric 'episode/return_'; did you mean 'episode/return'\?"):
        aggregate(tmp_path, "episode/return_")
    with pytest.raises(LaunchError, match=r"no run has the metric 'nothing'; there are: episode/return, frames"):
        aggregate(tmp_path, "nothing")


def test_means_rise_evenly_where_every_seed_does(tmp_path: Path) -> None:
    """The same seen from outside: no step of the mean is larger than the largest step of a seed."""
    seeds(tmp_path, *([float(k * (s + 1)) for k in range(30 + s)] for s in range(3)))
    (group,) = aggregate(tmp_path).families[0].groups
    steps = [after - before for before, after in itertools.pairwise(group.mean)]
    assert min(steps) >= 0
    assert max(steps) <= 3.0
