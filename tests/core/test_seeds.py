from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.seeds import Seeds

paths = st.lists(st.integers(0, 2**32 - 1) | st.text(max_size=8), max_size=4)


@pytest.mark.parametrize(
    ("node", "integer"),
    [
        (Seeds(0), 821328062),
        (Seeds(7).branch("envs", "worker", 2, 3, "episode", 11), 193158816),
        (Seeds(123456789).branch("policy"), 1310250870),
    ],
)
def test_seeds_never_change(node: Seeds, integer: int) -> None:
    """Pinned: an episode of an old run must be found again by newer code."""
    assert node.integer() == integer


def test_seeds_are_the_same_in_every_process() -> None:
    """Python's own hash of a word would not be."""
    code = "from rollmill.core.seeds import Seeds; print(Seeds(3).branch('word', 4).integer())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
        ).stdout
        for hash_seed in "12"
    }
    assert found == {f"{Seeds(3).branch('word', 4).integer()}\n"}


def test_branches_differ() -> None:
    run = Seeds(1)
    nodes = [
        run,
        Seeds(2),
        run.branch(0),
        run.branch(1),
        run.branch(0, 0),
        run.branch(0, 1),
        run.branch(1, 0),
        run.branch("a"),
        run.branch("b"),
        run.branch("a", "b"),
        run.branch("b", "a"),
    ]
    assert len({node.integer() for node in nodes}) == len(nodes)


def test_thousands_of_episodes_have_thousands_of_seeds() -> None:
    """Neighbours in the tree are no neighbours in numbers: collisions as rare as for random ones."""
    seeds = {
        Seeds(0).branch("worker", worker, env, "episode", episode).integer()
        for worker in range(4)
        for env in range(5)
        for episode in range(100)
    }
    assert len(seeds) >= 1998
    assert np.mean(np.array(list(seeds)) / 2**31) == pytest.approx(0.5, abs=0.03)


def test_a_word_is_not_the_number_it_spells() -> None:
    assert Seeds(1).branch("3") != Seeds(1).branch(3)
    assert Seeds(1).branch("3").integer() != Seeds(1).branch(3).integer()


def test_branching_at_once_or_step_by_step_is_the_same() -> None:
    assert Seeds(1).branch("a", 2, "b") == Seeds(1).branch("a").branch(2).branch("b")


def test_a_number_from_numpy_is_a_number() -> None:
    assert Seeds(1).branch(np.int64(4)) == Seeds(1).branch(4)


@settings(max_examples=50, deadline=None)
@given(root=st.integers(0, 2**63), path=paths)
def test_every_simulator_accepts_the_seed(root: int, path: list[int | str]) -> None:
    assert 0 <= Seeds(root).branch(*path).integer() < 2**31


def test_generators_repeat_and_do_not_share_their_numbers() -> None:
    node = Seeds(9).branch("decorrelate", 4)
    first, again = node.generator(), node.generator()
    np.testing.assert_array_equal(first.random(5), again.random(5))
    assert first.random() != Seeds(9).branch("decorrelate", 5).generator().random()


@given(root=st.integers(0, 2**200), path=st.lists(st.integers(0, 2**70), max_size=5))
def test_a_node_is_numpys_seed_sequence_with_its_path_as_spawn_key(root: int, path: list[int]) -> None:
    plain = np.random.SeedSequence(entropy=root, spawn_key=path)
    node = Seeds(root).branch(*path)
    assert node.integer() == int(plain.generate_state(1)[0]) & 0x7FFFFFFF
    assert node.generator().random() == np.random.default_rng(plain).random()


@pytest.mark.parametrize("node", [Seeds(-1), Seeds(1).branch("env", -1)])
def test_negative_numbers_are_refused(node: Seeds) -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        node.integer()
