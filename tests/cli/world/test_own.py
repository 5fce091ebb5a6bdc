"""Parts of a world model of the user's own, from learning to playing: named, stored, refused where nobody says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dreaming import corner_encoder, line_model
from image_stores import image_store
from running import ROOT, Call

from rollmill.cli.main import main
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, UntrustedCodeError
from rollmill.core.tree_file import load_tree, save_tree
from rollmill.worldmodel.controller.model import load_controller
from rollmill.worldmodel.controller.nets import build_own
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dream_env import DreamEnv
from rollmill.worldmodel.dynamics.model import build_dynamics, load_dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.encoder.file import build_encoder, load_encoder
from rollmill.worldmodel.own import OwnClass, Trust

FILE = ROOT / "examples" / "own_world_model.py"
ENCODER, MEMORY, NET = (f"{FILE}:{name}" for name in ("Flat", "Gated", "TwoLayers"))
ENV = ("env=toy_image", "env.args.size=8", "env.args.length=4")
EVERYTHING = Trust(trust_code=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages, in the words that name the classes."""
    folder = tmp_path_factory.mktemp("own")
    raw, vae, latents, model, ctl = (str(folder / name) for name in ("raw", "vae", "latents", "dynamics", "controller"))
    search = ("population=4", "trials=1", "generations=1", "mode=serial", "final_episodes=0", "evaluate_every=0")
    stages: list[tuple[str, ...]] = [
        ("collect", *ENV, "--policy", "random", "--episodes", "6", "--out", raw, "sampling.workers=1"),
        (
            *("world", "vae", raw, "--out", vae, f"encoder.custom={ENCODER}", "encoder.custom_args.width=8"),
            *("encoder.size=3", "fit.steps=2", "fit.batch_size=8", "tensorboard=false", "fit.device=cpu"),
        ),
        ("world", "encode", raw, vae, "--out", latents, f"encoder.custom={ENCODER}"),
        (
            *("world", "dynamics", latents, "--out", model, f"custom={MEMORY}", "size=6", "mixtures=2", "steps=2"),
            *("sequence_length=3", "batch_size=4", "threads=1", "validation=0", "device=cpu"),
        ),
        (
            *("world", "controller", vae, "--dynamics", model, "--out", ctl, *ENV, f"controller.custom={NET}"),
            *("controller.custom_args.width=5", "controller.device=cpu", *(f"controller.{word}" for word in search)),
            *(f"encoder.custom={ENCODER}", f"dynamics.custom={MEMORY}"),
        ),
    ]
    for words in stages:
        assert main(words) == 0, words
    return folder


NAMED = (f"encoder.custom={ENCODER}", f"dynamics.custom={MEMORY}", f"controller.custom={NET}")
PLAY = ("--episodes", "2", "--envs", "2", "--workers", "1", "--json")


def test_what_is_made_plays(made: Path, call: Call) -> None:
    for words in (("--trust-code",), NAMED):
        played = call("eval", str(made / "controller"), *PLAY, *words)
        assert played.code == 0, played.err
        assert json.loads(played.out)["episodes"] == 2


@pytest.mark.parametrize("left_out", range(3))
def test_code_that_only_the_files_name_is_refused(made: Path, call: Call, left_out: int) -> None:
    words = [word for number, word in enumerate(NAMED) if number != left_out]
    refused = call("eval", str(made / "controller"), *PLAY, *words)
    assert refused.code == 2
    assert f"name it yourself: {NAMED[left_out]}" in refused.err
    assert "--trust-code" in refused.err


def test_the_files_hold_classes_and_arguments(made: Path) -> None:
    encoder = load_encoder(made / "vae", trust=Trust(encoder=OwnClass(custom=ENCODER)))
    assert (type(encoder).__name__, encoder.kind, encoder.size) == ("Flat", ENCODER, 3)
    assert encoder.architecture == {"size": 3, "width": 8}
    model = load_dynamics(made / "dynamics", trust=EVERYTHING)
    assert type(model.core).__name__ == "Gated"
    assert model.memory_size == 6
    controller = load_controller(made / "controller")
    assert controller.settings.custom_args == {"width": 5}
    assert controller.weights.shape == (((3 + 6) + 1) * 5 + (5 + 1) * 4,)
    for load, place in ((load_encoder, "vae"), (load_dynamics, "dynamics")):
        with pytest.raises(UntrustedCodeError, match="names code"):
            load(made / place)  # type: ignore[operator]


def test_arguments_that_could_be_anything_have_to_be_named_too(made: Path, tmp_path: Path) -> None:
    tree = load_tree(made / "vae" / "encoder.bin")
    save_tree(tmp_path / "encoder.bin", {**tree, "architecture": {**tree["architecture"], "width": "/etc/passwd"}})
    named = Trust(encoder=OwnClass(custom=ENCODER))
    with pytest.raises(UntrustedCodeError, match=r"encoder\.custom_args\.width=/etc/passwd"):
        load_encoder(tmp_path, trust=named)
    mine = Trust(encoder=OwnClass(custom=ENCODER, custom_args={"width": 8}))
    assert load_encoder(tmp_path, trust=mine).architecture["width"] == 8


def test_dreams_of_it_name_it(made: Path) -> None:
    with pytest.raises(UntrustedCodeError, match=r"dynamics\.custom="):
        DreamEnv(str(made / "dynamics"))
    env = DreamEnv(str(made / "dynamics"), custom={"dynamics": MEMORY}, max_steps=3)
    assert env.reset(seed=0)[0].shape == (3 + 6,)
    with pytest.raises(ConfigError, match="not of controller"):
        DreamEnv(str(made / "dynamics"), custom={"controller": NET})


def test_a_name_for_what_is_none_of_ones_own_is_refused(call: Call, tmp_path: Path) -> None:
    corner_encoder(tmp_path / "encoder.bin")
    image_store(tmp_path / "raw", 1)
    said = call("world", "encode", "raw", ".", "--out", "z", f"encoder.custom={ENCODER}")
    assert said.code == 2
    assert "is made of no class of your own" in said.err


def test_its_memory_reads_step_by_step_what_it_reads_at_once() -> None:
    model = line_model(custom=MEMORY)
    z, a = torch.randn(3, 5, 2), torch.randint(3, (3, 5))
    whole = model(z, a, torch.arange(5).expand(3, 5), torch.ones(3, 5, dtype=torch.bool))
    state = model.begin(3)
    for t in range(5):
        assert torch.allclose(model.read(z[:, t], a[:, t], state, torch.arange(3)), whole[:, t], atol=1e-5)


def test_a_population_of_its_controllers_is_as_each_member_alone() -> None:
    net = build_own(NET, {"width": 5}, 4, 3, "cpu")
    weights, x = torch.randn(6, net.weights), torch.randn(6, 4)
    for one, row, w in zip(net(x, weights), x, weights, strict=True):
        into, offset, out, last = w.split([4 * 5, 5, 5 * 3, 3])
        hidden = torch.relu(into.reshape(5, 4) @ row + offset)
        assert torch.allclose(one, out.reshape(3, 5) @ hidden + last, atol=1e-5)


OWN = """
import torch
from torch import nn
from rollmill.worldmodel.dynamics.model import Core, Dynamics
from rollmill.worldmodel.encoder.file import ImageEncoder

class Short(ImageEncoder):
    def encode(self, images):
        return torch.zeros(len(images), 1), torch.ones(len(images), 1)
    def decode(self, latents):
        return torch.zeros(len(latents), *self.image_shape, dtype=torch.uint8)

class Broad(Core):
    def __init__(self, inputs, settings):
        super().__init__(inputs, settings)
        self.layer = nn.Linear(inputs, 99)
    def forward(self, x, step, mask):
        return self.layer(x)
    def read(self, x, memory, lanes):
        return self.layer(x)

class Fixed(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.layer = nn.Linear(features, 7)
    def forward(self, features):
        return self.layer(features)

class Whole(Dynamics):
    def __init__(self, settings, origin, scale=1.0):
        super().__init__(settings, origin)
        self.scale = scale
"""


def test_what_does_not_fit_is_said_before_anything_starts(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(OWN)
    with pytest.raises(ConfigError, match=r"Short: encode gives \(2, 1\) and \(2, 1\), expected \(2, 4\)"):
        build_encoder(f"{own}:Short", (8, 8, 3), size=4)
    with pytest.raises(ConfigError, match=r"is called with .*unexpected keyword argument 'depth'"):
        build_encoder(f"{own}:Short", (8, 8, 3), size=4, depth=3)
    with pytest.raises(ConfigError, match="has nothing fitting"):
        build_encoder(f"{own}:Broad", (8, 8, 3), size=4)
    origin = line_model().origin
    with pytest.raises(ConfigError, match=r"Broad: forward gives memories of shape \(2, 99\), expected \(2, 8\)"):
        build_dynamics(DynamicsSettings(size=8, custom=f"{own}:Broad"), origin)
    whole = build_dynamics(DynamicsSettings(size=8, custom=f"{own}:Whole", custom_args={"scale": 2.0}), origin)
    assert (type(whole).__name__, whole.scale) == ("Whole", 2.0)
    with pytest.raises(ConfigError, match="no parameters"):
        build_own("torch.nn:Identity", {}, 3, 3, "cpu")
    with pytest.raises(ConfigError, match=r"forward gives \(7,\) for one row of features, not \(2,\)"):
        build_own(f"{own}:Fixed", {}, 3, 2, "cpu")
    with pytest.raises(ConfigError, match="custom_args are given but custom is not"):
        load_config(DynamicsSettings, (), ("custom_args.x=1",))
    with pytest.raises(ConfigError, match="hidden is a layer"):
        load_config(ControllerSettings, (), ("hidden=4", f"custom={NET}"))
