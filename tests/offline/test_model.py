import pytest
import torch

from rollmill.core.fields import MASK_FIELD, ActionSpec, EnvSpec, Field
from rollmill.offline.model import ActionEmbedding, Scales, SequencePolicy
from rollmill.offline.settings import SequenceSettings
from rollmill.offline.tokens import Inputs

ACTIONS = {
    "discrete": ActionSpec("discrete", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("multi_discrete", nvec=(3, 2, 5), start=(0, 0, 0)),
    "binary": ActionSpec("multi_discrete", nvec=(2, 2), start=(0, 0)),
    "continuous": ActionSpec("continuous", shape=(2, 3), low=(-1.0,) * 6, high=(1.0,) * 6),
    "mixed": ActionSpec("mixed", nvec=(3, 2), start=(0, 0), shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
}
SMALL = SequenceSettings(context=4, size=16, layers=2, heads=2, mlp=(8,), fc=(16,), dropout=0.0)


def spec_of(kind: str, image: bool = False, mask: bool = False) -> EnvSpec:
    fields = [Field("vector", "float32", (3,))]
    if image:
        fields.append(Field("image", "uint8", (36, 36, 3)))
    if mask:
        fields.append(Field(MASK_FIELD, "int8", (4,)))
    return EnvSpec("x", tuple(fields), ACTIONS[kind])


def policy_for(spec: EnvSpec, conditioned: bool = True, settings: SequenceSettings = SMALL) -> SequencePolicy:
    torch.manual_seed(0)
    model = SequencePolicy(spec, settings, Scales(5.0, 2.0, 6), conditioned).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def random_actions(spec: ActionSpec, *shape: int) -> torch.Tensor:
    choices = [torch.randint(n, shape) for n in spec.nvec]
    if spec.kind == "discrete":
        return choices[0]
    if spec.kind == "multi_discrete":
        return torch.stack(choices, -1)
    if spec.kind == "continuous":
        return torch.rand(*shape, *spec.shape)
    return torch.cat([torch.stack(choices, -1).float(), torch.rand(*shape, 2)], -1)


def windows(spec: EnvSpec, batch: int, length: int, padding: int = 0) -> Inputs:
    obs = {}
    for field in spec.observation:
        shape = (batch, length, *field.shape)
        if field.name == MASK_FIELD:
            obs[field.name] = torch.ones(shape, dtype=torch.int8)
        elif field.dtype == "uint8":
            obs[field.name] = torch.randint(0, 256, shape, dtype=torch.uint8)
        else:
            obs[field.name] = torch.randn(shape)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[:, :padding] = False
    step = (torch.arange(length) - padding).clamp(min=0).expand(batch, length)
    return Inputs(obs, random_actions(spec.action, batch, length), torch.randn(batch, length), step, mask)


@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize("conditioned", [True, False])
def test_all_kinds_of_actions_learn_and_a_short_batch_is_fine(kind: str, conditioned: bool) -> None:
    spec = spec_of(kind)
    model = policy_for(spec, conditioned)
    for batch in (5, 1):
        data = windows(spec, batch, 6, padding=2)
        loss = model.loss(data, model(data))
        assert loss.shape == (batch, 6)
        assert not loss[:, :2].any()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        hits = model.hits(data, model(data))
        assert hits.shape == (batch, 6)
        assert torch.isfinite(hits).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("image", [False, True])
@torch.no_grad()
def test_encoding_real_steps_only_changes_nothing(image: bool) -> None:
    spec = spec_of("discrete", image)
    model, data = policy_for(spec), windows(spec, 3, 5, padding=2)
    compact = model(data)
    model.compact = False
    torch.testing.assert_close(model(data)[data.mask], compact[data.mask], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_decision_sees_the_return_and_the_observation_of_its_step_but_not_its_action() -> None:
    spec = spec_of("discrete")
    model, data = policy_for(spec), windows(spec, 1, 4)
    before = model(data)
    changed = Inputs(data.obs, (data.action + 1) % 4, data.returns, data.step, data.mask)
    last_only = changed.action.clone()
    last_only[:, :-1] = data.action[:, :-1]
    same = model(Inputs(data.obs, last_only, data.returns, data.step, data.mask))
    assert torch.equal(same, before)  # nobody comes after the last action
    assert not torch.allclose(model(changed)[:, 1:], before[:, 1:])  # later decisions see it
    returns = data.returns.clone()
    returns[:, 2] += 1
    after = model(Inputs(data.obs, data.action, returns, data.step, data.mask))
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2], before[:, 2])


@torch.no_grad()
def test_cloning_does_not_look_at_returns_and_may_not_look_at_actions() -> None:
    spec = spec_of("discrete")
    data = windows(spec, 2, 4)
    asked = Inputs(data.obs, data.action, data.returns + 100, data.step, data.mask)
    cloned = policy_for(spec, conditioned=False)
    assert torch.equal(cloned(asked), cloned(data))
    blind = policy_for(spec, False, SequenceSettings(**{**vars(SMALL), "action_tokens": False}))
    other = Inputs(data.obs, (data.action + 1) % 4, data.returns, data.step, data.mask)
    assert torch.equal(blind(other), blind(data))


@torch.no_grad()
def test_steps_beyond_the_table_share_its_last_row() -> None:
    spec = spec_of("discrete")
    model, data = policy_for(spec), windows(spec, 1, 3)
    late = [Inputs(data.obs, data.action, data.returns, data.step + k, data.mask) for k in (5, 500)]
    assert torch.equal(model(late[0]), model(late[1]))


@torch.no_grad()
def test_a_forbidden_action_is_never_likely() -> None:
    spec = spec_of("discrete", mask=True)
    model, data = policy_for(spec), windows(spec, 2, 3)
    data.obs[MASK_FIELD][..., 1] = 0
    allowed = Inputs(data.obs, torch.where(data.action == 1, 0, data.action), data.returns, data.step, data.mask)
    assert torch.isfinite(model.loss(allowed, model(allowed))).all()
    mode = model.head.sample(model(allowed), data.obs[MASK_FIELD], deterministic=True)
    assert (mode != 1).all()


def test_components_of_an_action_have_rows_of_their_own() -> None:
    embedding = ActionEmbedding(ACTIONS["multi_discrete"], 4)
    assert embedding.choices is not None
    rows = embedding.choices.weight
    found = embedding(torch.tensor([[2, 1, 4]]))
    torch.testing.assert_close(found[0], rows[2] + rows[3 + 1] + rows[5 + 4])
