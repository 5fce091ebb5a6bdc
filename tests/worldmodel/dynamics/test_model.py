"""Dynamics models: reading step by step equals reading sequences, and files hold all that is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dreaming import line_model

from rollmill.core.errors import CheckpointError
from rollmill.core.tree_file import load_tree, save_tree
from rollmill.worldmodel.dynamics.model import load_dynamics, save_dynamics
from rollmill.worldmodel.files import DYNAMICS

KINDS = ("lstm", "transformer", "none")
LENGTH = 11


def sequences() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(3, LENGTH, 2, generator=generator)
    a = torch.randint(3, (3, LENGTH), generator=generator)
    return z, a, torch.arange(LENGTH).expand(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("memory", KINDS)
def test_steps_give_what_sequences_give_also_in_an_episode_that_follows_another(memory: str) -> None:
    model = line_model(memory=memory, layers=2)
    z, a, step, mask = sequences()
    expected = model(z, a, step, mask)
    lanes, state = torch.arange(3), model.begin(3)
    for t in range(5):  # an episode that is then forgotten
        model.read(z[:, t], a[:, t], state, lanes)
    model.forget(state, lanes)
    assert not state.h.any()
    for t in range(LENGTH):
        assert torch.allclose(model.read(z[:, t], a[:, t], state, lanes), expected[:, t], atol=1e-5)


@pytest.mark.parametrize("memory", KINDS)
def test_lanes_do_not_disturb_each_other(memory: str) -> None:
    model = line_model(memory=memory)
    z, a, _, _ = sequences()
    together, alone = model.begin(3), model.begin(3)
    for t in range(LENGTH):
        model.read(z[:, t], a[:, t], together, torch.arange(3))
        model.read(z[2:, t], a[2:, t], alone, torch.tensor([2]))
        if t == 4:
            model.forget(together, torch.tensor([0]))
    assert torch.allclose(together.h[2], alone.h[2], atol=1e-5)


def test_the_past_matters_exactly_where_there_is_a_memory() -> None:
    z, a, step, mask = sequences()
    other = z.clone()
    other[:, 3] += 1.0
    for memory, differs in (("lstm", True), ("transformer", True), ("none", False)):
        model = line_model(memory=memory, context=8)
        assert torch.equal(model(z, a, step, mask)[:, 5], model(other, a, step, mask)[:, 5]) is not differs
        assert model.memory_size == (0 if memory == "none" else 8)


def test_the_future_never_matters() -> None:
    z, a, step, mask = sequences()
    later = z.clone()
    later[:, 6:] = 9.0
    for memory in KINDS:
        model = line_model(memory=memory)
        assert torch.allclose(model(z, a, step, mask)[:, :6], model(later, a, step, mask)[:, :6], atol=1e-6)


@pytest.mark.parametrize("memory", KINDS)
def test_a_path_is_all_one_needs(tmp_path: Path, memory: str) -> None:
    model = line_model(memory=memory)
    save_dynamics(tmp_path / "dynamics.bin", model, {"steps": 3})
    loaded = load_dynamics(tmp_path)  # the folder stands for the file
    z, a, step, mask = sequences()
    assert torch.equal(loaded(z, a, step, mask), model(z, a, step, mask))
    assert loaded.settings == model.settings
    assert loaded.origin == model.origin
    assert loaded.metadata == {"steps": 3}
    assert np.array_equal(loaded.starts.mean, model.starts.mean)


def test_other_files_and_newer_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    save_tree(path, {"format": "image_encoder"})
    with pytest.raises(CheckpointError, match="not a dynamics model"):
        load_dynamics(path)
    save_dynamics(path, line_model(), {})
    tree = load_tree(path)
    save_tree(path, {**tree, "version": DYNAMICS.version + 1})
    with pytest.raises(CheckpointError, match="newer version"):
        load_dynamics(path)
    save_tree(path, {**tree, "weights": {"nothing": np.zeros(1)}})
    with pytest.raises(CheckpointError, match="do not fit"):
        load_dynamics(path)
