"""Controllers: stacked weights against a loop, memory and its ablations, files, images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dreaming import LATENT_SPEC, corner_encoder, line_model

from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.tree_file import load_tree, save_tree
from rollmill.worldmodel.controller.model import (
    ControllerAgent,
    ControllerState,
    SavedController,
    build_net,
    image_field,
    load_controller,
    save_controller,
)
from rollmill.worldmodel.controller.nets import Layers
from rollmill.worldmodel.controller.settings import ControllerSettings, RetrievalSettings
from rollmill.worldmodel.dynamics.model import Axes
from rollmill.worldmodel.encoder.file import load_encoder
from rollmill.worldmodel.files import CONTROLLER

CPU = torch.device("cpu")
ACTION = LATENT_SPEC.action


@pytest.mark.parametrize("hidden", [0, 5])
def test_a_population_in_one_pass_is_as_each_member_alone(hidden: int) -> None:
    net = Layers(features=4, hidden=hidden, outputs=3)
    rng = torch.Generator().manual_seed(0)
    weights, x = torch.randn(6, net.weights, generator=rng), torch.randn(6, 4, generator=rng)
    for one, row, w in zip(net(x, weights), x, weights, strict=True):
        parts = w.split([4 * 3, 3] if not hidden else [4 * 5, 5, 5 * 3, 3])
        if hidden:
            row = torch.tanh(parts[0].reshape(5, 4) @ row + parts[1])
        matrix, offset = parts[-2], parts[-1]
        assert torch.allclose(one, matrix.reshape(3, -1) @ row + offset, atol=1e-5)


def test_a_linear_controller_of_the_published_size() -> None:
    assert Layers(features=32 + 256, hidden=0, outputs=3).weights == 867


def state(inputs: str = "zh", memory: str = "lstm", lanes: int = 4) -> ControllerState:
    model = line_model(memory=memory)
    return ControllerState(ControllerSettings(inputs=inputs), ACTION, 2, model, lanes, CPU)  # type: ignore[arg-type]


def test_what_is_seen_depends_on_inputs_and_memory() -> None:
    assert state().net.features == 2 + 8
    assert state(inputs="z").net.features == 2
    assert state(memory="none", inputs="z").net.features == 2
    index = ControllerSettings(retrieval=RetrievalSettings(neighbours=2, store=Path("x")))
    assert build_net(index, line_model(), 2, ACTION).features == 2 + 8 + 3


def test_the_memory_can_be_read_along_its_axes() -> None:
    model = line_model()
    rng = np.random.default_rng(0)
    model.axes = Axes(rng.normal(size=8).astype(np.float32), rng.normal(size=(8, 8)).astype(np.float32))
    settings = ControllerSettings(components=3)
    short, whole = (ControllerState(s, ACTION, 2, model, 4, CPU) for s in (settings, ControllerSettings()))
    assert short.net.features == 2 + 3
    lanes, latents = torch.arange(4), torch.randn(9, 4, 2, generator=torch.Generator().manual_seed(0))
    weights = torch.randn(short.net.weights, generator=torch.Generator().manual_seed(1))
    # The same controller for all numbers of the memory: its weights on h are those on the components, turned back.
    matrix, offset = weights[:15].reshape(3, 5), weights[15:]
    turned = matrix[:, 2:] @ torch.from_numpy(model.axes.directions[:, :3]).T
    shifted = offset - turned @ torch.from_numpy(model.axes.mean)
    short.take(lanes, weights)
    whole.take(lanes, torch.cat([torch.cat([matrix[:, :2], turned], 1).flatten(), shifted]))
    chosen = torch.stack([short.decide(lanes, z) for z in latents])
    assert torch.equal(chosen, torch.stack([whole.decide(lanes, z) for z in latents]))
    assert len(chosen.unique()) > 1


def test_axes_that_are_not_there_are_said() -> None:
    with pytest.raises(ConfigError, match="components=3: this dynamics model knows no axes"):
        ControllerState(ControllerSettings(components=3), ACTION, 2, line_model(), 4, CPU)
    model = line_model()
    model.axes = Axes(np.zeros(8, np.float32), np.eye(8, dtype=np.float32))
    with pytest.raises(ConfigError, match="components=9 of a memory of 8 numbers"):
        ControllerState(ControllerSettings(components=9), ACTION, 2, model, 4, CPU)


def test_lanes_remember_for_themselves_and_forget_when_they_begin_anew() -> None:
    one = state()
    rng = torch.Generator().manual_seed(1)
    weights = torch.randn(one.net.weights, generator=rng)
    z = torch.randn(9, 4, 2, generator=rng)
    lanes = torch.arange(4)
    one.take(lanes, weights)
    actions = [one.decide(lanes, x) for x in z]
    one.take(lanes[:2], weights)  # two begin again with the same latents, the others go on
    again = [one.decide(lanes[:2], x[:2]) for x in z]
    assert all(torch.equal(a[:2], b) for a, b in zip(actions, again, strict=True))
    assert one._memory is not None
    assert not torch.equal(one._memory.h[0], one._memory.h[3])


def test_without_a_look_at_the_memory_none_is_kept() -> None:
    assert state(inputs="z")._memory is None


def test_latents_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="latents of 2 numbers, not 7"):
        ControllerState(ControllerSettings(), ACTION, 7, line_model(), 1, CPU)


def test_images_become_actions(tmp_path: Path) -> None:
    encoder = load_encoder(corner_encoder(tmp_path / "encoder.bin"))
    thinking = ControllerState(
        ControllerSettings(inputs="z"), ActionSpec("discrete", nvec=(4,), start=(0,)), 4, None, 3, CPU
    )
    agent = ControllerAgent(encoder, thinking)
    lanes = np.array([2, 0])
    agent.take(lanes, torch.randn(2, thinking.net.weights))
    actions = agent.decide(lanes, np.zeros((2, 36, 36, 3), np.uint8))
    assert actions.shape == (2,)
    assert actions.dtype == np.int64


def test_the_image_must_fit_the_encoder(tmp_path: Path) -> None:
    encoder = load_encoder(corner_encoder(tmp_path / "encoder.bin"))
    image, other = Field("eye", "uint8", (36, 36, 3)), Field("map", "uint8", (20, 20, 3))
    assert image_field(EnvSpec("e", (other, image), ACTION), encoder) == "eye"
    with pytest.raises(ConfigError, match=r"one image of \(36, 36, 3\), .*map uint8 \(20, 20, 3\).*env.args.size"):
        image_field(EnvSpec("e", (other,), ACTION), encoder)
    with pytest.raises(ConfigError, match="one agent"):
        image_field(EnvSpec("e", (image,), ACTION, agents=2), encoder)
    with pytest.raises(ConfigError, match="one agent and without action masks"):
        image_field(EnvSpec("e", (image, Field("action_mask", "int8", (3,))), ACTION), encoder)


def test_a_controller_survives_its_file(tmp_path: Path) -> None:
    settings = ControllerSettings(squash="pedal", retrieval=RetrievalSettings(neighbours=1, store=Path("lat")))
    saved = SavedController(settings, np.arange(5, dtype=np.float32), "vae", "dyn", {"id": "car_racing"}, {"g": 1})
    save_controller(tmp_path / "controller.bin", saved)
    loaded = load_controller(tmp_path)
    assert loaded.settings == settings
    assert loaded.weights.tolist() == [0, 1, 2, 3, 4]
    assert (loaded.encoder, loaded.dynamics, loaded.env, loaded.metadata) == (
        "vae",
        "dyn",
        {"id": "car_racing"},
        {"g": 1},
    )
    tree = load_tree(tmp_path / "controller.bin")
    save_tree(tmp_path / "controller.bin", {**tree, "version": CONTROLLER.version + 1})
    with pytest.raises(CheckpointError, match="newer"):
        load_controller(tmp_path)
    save_tree(tmp_path / "controller.bin", {"format": "dynamics"})
    with pytest.raises(CheckpointError, match="not a controller"):
        load_controller(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"population": 3}, "population"),
        ({"trials": 0}, "trials"),
        ({"sigma": 0.0}, "sigma"),
        ({"patience": 5}, "patience needs max_steps"),
        ({"patience": 5, "max_steps": 5}, "never reached"),
        ({"hidden": -1}, "hidden"),
        ({"final_episodes": -1}, "final_episodes"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ControllerSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"neighbours": 2}, "retrieval.store"),
        ({"neighbours": 9, "size": 4, "store": Path("x")}, "neighbours=9 of size=4"),
        ({"horizon": 0}, "horizon"),
    ],
)
def test_impossible_retrieval_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RetrievalSettings(**values)  # type: ignore[arg-type]
