"""The whole network: both forms agree for every kind of model, and wrong custom networks fail loudly."""

import copy
import itertools
import textwrap

import pytest
import torch

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, EnvSpec, Field
from rollmill.core.imports import import_object
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.encoders import build_encoder
from rollmill.models.settings import ModelSettings

DISCRETE = ActionSpec("discrete", nvec=(3,), start=(0,))
MULTI = ActionSpec("multi_discrete", nvec=(2, 4), start=(0, 0))
CONTINUOUS = ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
VECTOR = (Field("obs", "float32", (4,)),)
MIXED = (
    Field("image", "uint8", (36, 40, 3)),
    Field("speed", "float32", (2,)),
    Field("weapon", "uint8", (3,)),
    Field(MASK_FIELD, "int8", (6,)),
)
TINY = {"mlp": (8,), "fc": (8,), "hidden_size": 5}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def env_spec(observation=VECTOR, action=DISCRETE):
    return EnvSpec("test", observation, action)


def random_obs(spec, *lead):
    return {
        f.name: torch.randn(*lead, *f.shape) if f.is_float else torch.randint(0, 2, (*lead, *f.shape)).to(torch.uint8)
        for f in spec.observation
    }


def row(obs, t):
    return {name: x[t] for name, x in obs.items()}


MODELS = [
    (env_spec(*space), {**TINY, "memory": memory, "memory_layers": layers, "separate_critic": separate})
    for space, (memory, layers), separate in itertools.product(
        [(VECTOR, DISCRETE), (VECTOR, CONTINUOUS), (MIXED, MULTI)],
        [("none", 1), ("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)],
        [False, True],
    )
]


@pytest.mark.parametrize(("spec", "values"), MODELS)
def test_step_and_unroll_agree(spec, values):
    torch.manual_seed(0)
    steps, lanes = 6, 4
    model = build_model(spec, ModelSettings(**values))
    model.update_normalizer(random_obs(spec, 20))
    obs = random_obs(spec, steps, lanes)
    first = torch.rand(steps, lanes) < 0.3
    start = torch.randn(lanes, model.state_size)

    whole = model.unroll(obs, first, start)
    state = start
    for t in range(steps):
        params, value, state = model.step(row(obs, t), first[t], state)
        torch.testing.assert_close(params, whole.params[t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value, whole.value[t], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, whole.state, rtol=1e-4, atol=1e-5)
    assert whole.params.shape == (steps, lanes, model.head.param_size)
    assert whole.value.shape == (steps, lanes)
    assert model.initial_state(lanes).shape == whole.state.shape

    (whole.params.square().sum() + whole.value.square().sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_separate_critic_shares_no_weights(memory):
    model = build_model(env_spec(), ModelSettings(**TINY, memory=memory, separate_critic=True))
    obs, first = random_obs(env_spec(), 3, 2), torch.zeros(3, 2, dtype=torch.bool)
    model.unroll(obs, first, model.initial_state(2)).value.sum().backward()
    touched = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert touched == {"critic_trunk", "value_head"}


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_what_is_seen_reaches_the_heads_past_the_memory_unless_told_otherwise(memory):
    for skip in (True, False):
        model = build_model(env_spec(), ModelSettings(**TINY, memory=memory, memory_skip=skip))
        for parameter in model.trunk.memory.parameters():
            parameter.data.zero_()  # a memory that says nothing
        obs, first = random_obs(env_spec(), 2), torch.zeros(2, dtype=torch.bool)
        value = model.step(obs, first, model.initial_state(2)).value
        assert (value[0] != value[1]) == skip


def test_networks_of_the_users_own_get_images_as_they_are():
    spec = env_spec(MIXED, MULTI)
    assert build_model(spec, ModelSettings(**TINY)).observation_moments.image_shapes
    own = ActorCritic(spec, ModelSettings(**TINY), lambda: build_encoder(spec.inputs, ModelSettings(**TINY)))
    assert not own.observation_moments.image_shapes


def test_the_action_mask_is_not_an_input():
    spec = env_spec(MIXED, MULTI)
    model = build_model(spec, ModelSettings(**TINY))
    obs, first = random_obs(spec, 2), torch.zeros(2, dtype=torch.bool)
    other = {**obs, MASK_FIELD: 1 - obs[MASK_FIELD]}
    assert torch.equal(model.step(obs, first, model.initial_state(2)).params,
                       model.step(other, first, model.initial_state(2)).params)  # fmt: skip


def test_observations_are_normalised_only_when_asked_and_only_by_update():
    spec, first = env_spec(), torch.zeros(5, dtype=torch.bool)
    obs = {"obs": torch.randn(5, 4) * 3 + 2}
    for wanted in (True, False):
        model = build_model(spec, ModelSettings(**TINY, normalize_observations=wanted))
        before = model.step(obs, first, model.initial_state(5)).params
        assert torch.equal(before, model.step(obs, first, model.initial_state(5)).params)
        model.update_normalizer(obs, torch.tensor([True, True, True, True, False]))
        after = model.step(obs, first, model.initial_state(5)).params
        assert torch.equal(before, after) is not wanted


def test_values_are_in_normalised_units():
    model = build_model(env_spec(), ModelSettings(**TINY))
    returns = torch.randn(1000) * 20 + 100
    assert torch.equal(model.denormalise(returns), returns), "nothing seen yet: the identity"
    model.return_moments.update(returns)
    scaled = model.normalise(returns)
    assert scaled.mean().item() == pytest.approx(0, abs=1e-4)
    assert scaled.std().item() == pytest.approx(1, abs=1e-2)
    torch.testing.assert_close(model.denormalise(scaled), returns)


def test_a_checkpoint_brings_everything_back():
    spec = env_spec(MIXED, MULTI)
    model = build_model(spec, ModelSettings(**TINY, memory="gru"))
    model.update_normalizer(random_obs(spec, 50))
    model.return_moments.update(torch.randn(9) * 5)
    other = build_model(spec, ModelSettings(**TINY, memory="gru"))
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    obs, first, state = (
        random_obs(spec, 3),
        torch.zeros(3, dtype=torch.bool),
        torch.randn(3, model.state_size),
    )
    a, b = model.step(obs, first, state), other.step(obs, first, state)
    assert torch.equal(a.params, b.params)
    assert torch.equal(model.denormalise(a.value), other.denormalise(b.value))


@pytest.mark.parametrize(
    ("action", "shape", "words"),
    [
        (CONTINUOUS, (2,), "continuous actions cannot be masked"),
        (DISCRETE, (4,), r"shape \(4,\), not \(3,\)"),
    ],
)
def test_masks_that_do_not_fit_the_actions_are_refused(action, shape, words):
    with pytest.raises(ConfigError, match=words):
        build_model(env_spec((*VECTOR, Field(MASK_FIELD, "int8", shape)), action), ModelSettings())


# ----------------------------------------------------------------------------------- custom networks

CUSTOM = """
    import torch
    from torch import nn
    from rollmill.models.actor_critic import ActorCritic
    from rollmill.models.encoders import CustomEncoder

    class Wide(CustomEncoder):
        def __init__(self, spec, settings, width=7, wrong_by=0):
            super().__init__()
            self.output_size = width + wrong_by
            self.linear = nn.Linear(sum(f.shape[0] for f in spec.inputs), width)

        def forward(self, obs):
            return self.linear(torch.cat([obs[name].float() for name in obs], 1))

    class Whole(ActorCritic):
        def __init__(self, spec, settings, gain=1.0):
            super().__init__(spec, settings)
            self.gain = gain

        def step(self, obs, first, state):
            out = super().step(obs, first, state)
            return out._replace(value=out.value * self.gain)

    class Crooked(ActorCritic):
        def step(self, obs, first, state):
            out = super().step(obs, first, state)
            return out._replace(value=out.value.unsqueeze(1))

    class Sizeless(nn.Module):
        def __init__(self, spec, settings):
            super().__init__()

    class Clumsy(nn.Module):
        output_size = 3
        def __init__(self, spec, settings):
            super().__init__()
            raise TypeError("my own mistake")

    def function():
        pass
"""


@pytest.fixture
def custom_file(tmp_path):
    path = tmp_path / "my_nets.py"
    path.write_text(textwrap.dedent(CUSTOM))
    return path


def test_a_custom_encoder_takes_the_place_of_the_built_in_one(custom_file):
    values = ModelSettings(custom=f"{custom_file}:Wide", custom_args={"width": 11}, memory="gru", hidden_size=5)
    model = build_model(env_spec(), values)
    assert type(model) is ActorCritic
    assert model.trunk.memory.rnn.input_size == 11
    out = model.step(random_obs(env_spec(), 2), torch.zeros(2, dtype=torch.bool), model.initial_state(2))
    assert out.params.shape == (2, 3)
    assert model.training, "checking the shapes must not leave the model in evaluation mode"


def test_a_separate_critic_gets_its_own_custom_encoder(custom_file):
    model = build_model(env_spec(), ModelSettings(custom=f"{custom_file}:Wide", separate_critic=True))
    assert model.critic_trunk.encoder is not model.trunk.encoder
    assert type(model.critic_trunk.encoder) is type(model.trunk.encoder)


def test_a_custom_actor_critic_is_used_whole(custom_file):
    model = build_model(env_spec(), ModelSettings(**TINY, custom=f"{custom_file}:Whole", custom_args={"gain": 0.0}))
    out = model.step(random_obs(env_spec(), 2), torch.zeros(2, dtype=torch.bool), model.initial_state(2))
    assert type(model).__name__ == "Whole"
    assert (out.value == 0).all()


def test_a_custom_class_is_found_by_module_name(custom_file, monkeypatch):
    monkeypatch.syspath_prepend(str(custom_file.parent))
    assert import_object("my_nets:Wide", "model.custom").__module__ == "my_nets"


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "nets_in_this_folder.py").write_text("class Net: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert import_object("nets_in_this_folder:Net", "model.custom").__name__ == "Net"


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        (
            "Widde",
            {},
            r"has no 'Widde'; did you mean 'Wide'\? \(it has: Clumsy, Crooked, Sizeless, W",
        ),
        ("zzz", {}, r"has no 'zzz' \(it has: Clumsy, Crooked, Sizeless, Whole, Wide\)"),
        ("function", {}, "has nothing fitting under the name 'function'"),
        (
            "Wide",
            {"breadth": 3},
            r"unexpected keyword argument 'breadth'.*further parameters: width=7, wrong_by=0",
        ),
        ("Sizeless", {}, "int attribute output_size"),
        ("Sizeless", {"a": 1}, "further parameters: none"),
        ("Wide", {"wrong_by": 1}, r"gives features of shape \(2, 7\).*output_size says 8"),
        ("Crooked", {}, r"step gives value of shape \(2, 1\), expected \(2,\)"),
    ],
)
def test_wrong_custom_networks_are_explained(custom_file, name, args, words):
    with pytest.raises(ConfigError, match=words):
        build_model(env_spec(), ModelSettings(**TINY, custom=f"{custom_file}:{name}", custom_args=args))


def test_errors_inside_a_custom_constructor_keep_their_own_words(custom_file):
    with pytest.raises(TypeError, match="my own mistake"):
        build_model(env_spec(), ModelSettings(custom=f"{custom_file}:Clumsy"))


def test_a_custom_encoder_and_a_built_in_one_exclude_each_other(custom_file):
    with pytest.raises(ConfigError, match="leave encoder=auto"):
        build_model(env_spec(), ModelSettings(encoder="mlp", custom=f"{custom_file}:Wide"))


def test_a_missing_file_or_module_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no file .*absent\.py"):
        import_object(f"{tmp_path}/absent.py:Net", "model.custom")
    for name in ("no_such_module_here", "torch.no_such_module_here"):
        with pytest.raises(ConfigError, match=f"no module named '{name}'"):
            import_object(f"{name}:Net", "model.custom")


def test_a_failing_import_inside_a_custom_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"no_such_library_at_all.*needs_more\.py, line 1"):
        import_object("needs_more:Net", "model.custom")
