"""Encoders and running moments: shapes, scaling, layouts, refusals; moments against numpy."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Field
from rollmill.models.encoders import (
    CLIP,
    CustomEncoder,
    Mlp,
    ObservationNormaliser,
    build_encoder,
)
from rollmill.models.impala import ResidualBlock
from rollmill.models.moments import PixelMoments, RunningMoments
from rollmill.models.settings import ENCODERS, ModelSettings

IMAGE = Field("image", "uint8", (40, 48, 3))
SMALL = ModelSettings(fc=(16,), mlp=(8,))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def random_obs(fields, n, seed=0):
    rng = np.random.default_rng(seed)
    obs = {}
    for field in fields:
        if field.is_float:
            array = rng.normal(size=(n, *field.shape))
        else:
            array = rng.integers(0, 200 if field.dtype == "uint8" else 5, size=(n, *field.shape))
        obs[field.name] = torch.from_numpy(array.astype(field.dtype))
    return obs


# ------------------------------------------------------------------------------------------ moments


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    masked=st.booleans(),
)
def test_moments_of_a_stream_agree_with_numpy(sizes, seed, masked):
    rng = np.random.default_rng(seed)
    moments, kept = RunningMoments((3,)), []
    for size in sizes:
        batch = rng.normal(rng.normal() * 10, 1 + rng.random(), size=(size, 3)).astype(np.float32)
        valid = rng.random(size) < 0.6 if masked else np.ones(size, bool)
        moments.update(torch.from_numpy(batch), torch.from_numpy(valid) if masked else None)
        kept.append(batch[valid])
    seen = np.concatenate(kept).astype(np.float64)
    assert moments.count.item() == len(seen)
    if len(seen):
        np.testing.assert_allclose(moments.mean.numpy(), seen.mean(0), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(moments.var.numpy(), seen.var(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(moments.std.numpy(), np.sqrt(seen.var(0) + moments.EPSILON), rtol=1e-5)


def test_moments_keep_their_precision_far_from_zero():
    rng = np.random.default_rng(0)
    moments, seen = RunningMoments(), []
    for _ in range(200):
        batch = (1e5 + 0.1 * rng.normal(size=50)).astype(np.float32)
        moments.update(torch.from_numpy(batch))
        seen.append(batch)
    everything = np.concatenate(seen).astype(np.float64)
    assert moments.var.item() == pytest.approx(everything.var(), rel=1e-6)


def test_rows_that_do_not_count_may_hold_anything():
    moments = RunningMoments((2,))
    x = torch.tensor([[[1.0, 2.0], [float("nan"), float("inf")]], [[3.0, 6.0], [0.0, 0.0]]])  # [T=2, B=2, 2]
    moments.update(x, torch.tensor([[True, False], [True, False]]))
    assert moments.mean.tolist() == [2.0, 4.0]
    assert moments.var.tolist() == [1.0, 4.0]


def test_without_rows_that_count_scaling_stays_the_identity():
    moments = RunningMoments((2,))
    moments.update(torch.randn(4, 2), torch.zeros(4, dtype=torch.bool))
    moments.update(torch.empty(0, 2))
    x = torch.randn(5, 2)
    assert torch.equal(moments.normalise(x), x)
    assert torch.equal(moments.denormalise(x), x)


def test_denormalise_undoes_normalise():
    moments = RunningMoments()
    moments.update(torch.randn(100) * 7 + 30)
    x = torch.randn(20) * 9
    torch.testing.assert_close(moments.denormalise(moments.normalise(x)), x, rtol=1e-5, atol=1e-5)


def test_a_plain_copy_of_the_tensors_is_a_working_copy():
    source, copy = RunningMoments((2,)), RunningMoments((2,))
    source.update(torch.randn(50, 2) * 3 + 1)
    for name, tensor in copy.state_dict().items():
        tensor.copy_(source.state_dict()[name])
    x = torch.randn(4, 2)
    assert torch.equal(copy.normalise(x), source.normalise(x))
    more = torch.randn(7, 2)
    source.update(more)
    copy.update(more)
    assert torch.equal(copy.mean, source.mean)


def test_normaliser_scales_and_clips_floats_and_leaves_the_rest():
    fields = (
        IMAGE,
        Field("speed", "float32", (2,)),
        Field("map", "float32", (2, 2)),
        Field("hot", "uint8", (3,)),
    )
    normaliser = ObservationNormaliser(fields)
    obs = random_obs(fields, 64)
    normaliser.update(obs)
    obs["speed"][0, 0] = 1e6
    out = normaliser(obs)
    assert out["image"] is obs["image"]
    assert out["hot"] is obs["hot"]
    assert out["speed"][0, 0] == CLIP
    map_ = obs["map"].numpy().astype(np.float64)
    expected = (map_ - map_.mean(0)) / np.sqrt(map_.var(0) + 1e-5)
    np.testing.assert_allclose(out["map"].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert obs["speed"][0, 0] == 1e6, "the caller's tensor must not change"


def test_images_are_scaled_by_the_moments_of_their_pixels_when_asked():
    normaliser = ObservationNormaliser((IMAGE,), images=True)
    images = torch.randint(90, 120, (8, *IMAGE.shape), dtype=torch.uint8)
    torch.testing.assert_close(normaliser({"image": images})["image"], images / 255)
    normaliser.update({"image": images})
    out = normaliser({"image": images})["image"]
    pixels = images.double()
    torch.testing.assert_close(out.double(), (pixels - pixels.mean().round()) / pixels.std(), rtol=1e-4, atol=1e-4)


def test_a_large_batch_of_images_is_sampled_evenly():
    moments = PixelMoments()
    brightness = torch.arange(160, dtype=torch.uint8)
    moments.update(brightness.reshape(160, 1, 1, 1).expand(160, 4, 4, 1))
    assert moments.count == 8 * 16
    assert float(moments.mean) == pytest.approx(70)  # 0, 20, ..., 140


def test_images_of_one_colour_are_not_blown_up():
    moments = PixelMoments()
    moments.update(torch.full((4, 2, 2, 1), 7, dtype=torch.uint8))
    assert moments.normalise(torch.tensor([9], dtype=torch.uint8)).item() == 2


def test_scaling_of_pixels_is_exact_in_bfloat16_up_to_one_rounding():
    moments = PixelMoments()
    moments.update(torch.randint(0, 255, (8, 5, 5, 3), dtype=torch.uint8))
    every = torch.arange(256, dtype=torch.uint8)
    with torch.autocast("cpu", torch.bfloat16):
        small = moments.normalise(every)
    assert small.dtype == torch.bfloat16
    torch.testing.assert_close(small.float(), moments.normalise(every), rtol=2**-7, atol=0)


# ----------------------------------------------------------------------------------------- encoders


@pytest.mark.parametrize("name", ["auto", "convnet_simple", "convnet_atari", "impala", "mlp"])
@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
def test_every_encoder_reads_every_kind_of_field(name, nonlinearity):
    fields = (
        IMAGE,
        Field("gray", "uint8", (1, 37, 36)),
        Field("position", "float32", (3,)),
        Field("grid", "int16", (2, 4)),
        Field("health", "float32", ()),
        Field("weapon", "int64", ()),
    )
    encoder = build_encoder(fields, ModelSettings(encoder=name, fc=(16,), mlp=(8, 7), nonlinearity=nonlinearity))
    obs = random_obs(fields, 5)
    before = {key: value.clone() for key, value in obs.items()}
    features = encoder(obs)
    assert features.shape == (5, encoder.output_size) == (5, 7 if name == "mlp" else 16)
    features.sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    assert all(torch.equal(obs[key], before[key]) for key in obs), "activations must not overwrite the input"


def test_vectors_pass_unchanged_without_mlp_layers():
    fields = (Field("a", "float32", (2,)), Field("b", "int64", ()))
    encoder = build_encoder(fields, ModelSettings(mlp=()))
    assert encoder({"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3])}).tolist() == [[1.0, 2.0, 3.0]]


def test_fc_may_be_empty():
    encoder = build_encoder((IMAGE,), ModelSettings(fc=()))
    assert encoder(random_obs((IMAGE,), 2)).shape == (2, encoder.output_size) == (2, 128 * 1 * 1)


def test_flattened_images_are_scaled():
    encoder = build_encoder((Field("image", "uint8", (1, 2, 1)),), ModelSettings(encoder="mlp", mlp=()))
    out = encoder({"image": torch.tensor([[[[0], [255]]]], dtype=torch.uint8)})
    torch.testing.assert_close(out, torch.tensor([[0.0, 1.0]]))


def test_convnet_computes_what_its_layers_say():
    encoder = build_encoder((IMAGE,), SMALL)
    obs = random_obs((IMAGE,), 3)
    x = obs["image"].permute(0, 3, 1, 2).contiguous().float() / 255
    convs = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    for conv, (channels, kernel, stride) in zip(convs, ENCODERS["convnet_simple"], strict=True):
        assert conv.weight.shape[0] == channels
        assert conv.weight.shape[2:] == (kernel, kernel)
        x = functional.elu(functional.conv2d(x, conv.weight.contiguous(), conv.bias, stride))
    torch.testing.assert_close(encoder.convnets[0](obs["image"]), x.permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
def test_a_residual_block_adds_to_its_unchanged_input(nonlinearity):
    block = ResidualBlock(4, nonlinearity)
    act = getattr(functional, nonlinearity)
    first, second = (m for m in block.modules() if isinstance(m, nn.Conv2d))
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(block(x.clone()), x + second(act(first(act(x)))))


def test_both_image_layouts_give_the_same_features():
    height, width, channels = IMAGE.shape
    last = build_encoder((IMAGE,), SMALL)
    first = build_encoder((Field("image", "uint8", (channels, height, width)),), SMALL)
    first.load_state_dict(last.state_dict())
    image = random_obs((IMAGE,), 4)["image"]
    torch.testing.assert_close(
        last({"image": image}), first({"image": image.permute(0, 3, 1, 2).contiguous()}), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(40, 48, 3), (40, 48, 1), (4, 40, 48)])
def test_convolutions_run_channels_last_and_flatten_for_free(shape):
    field = Field("image", "uint8", shape)
    convnet = build_encoder((field,), SMALL).convnets[0]
    seen = []
    convnet.body.register_forward_hook(lambda module, args, out: seen.extend([args[0], out]))
    features = convnet(random_obs((field,), 3)["image"])
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)
    assert features.data_ptr() == seen[1].data_ptr(), "flattening must be a view"


@pytest.mark.parametrize("name", ["auto", "convnet_simple", "convnet_atari"])
def test_the_smallest_allowed_image_works_and_a_smaller_one_is_named(name):
    model = ModelSettings(encoder=name, fc=(4,))
    build_encoder((Field("eye", "uint8", (36, 36, 3)),), model)
    for shape in ((35, 100, 3), (100, 35, 3), (3, 35, 100)):
        with pytest.raises(ConfigError, match=r"'eye' is (35x100|100x35).*at least 36x36; use") as caught:
            build_encoder((Field("eye", "uint8", shape),), model)
        fitting = re.findall(r"\w+", str(caught.value).partition("use model.encoder=")[2].replace(" or ", " "))
        assert {"convnet_small", "convnet_grid", "impala", "mlp"} <= set(fitting)
        assert not {"convnet_simple", "convnet_atari"} & set(fitting)


def test_convnet_grid_reads_the_maps_of_a_treasure_hunt():
    field = Field("maps", "uint8", (4, 51, 51))
    encoder = build_encoder((field,), ModelSettings(encoder="convnet_grid", fc=(7,)))
    assert encoder.convnets[0].output_size == 32 * 3 * 3, "51 cells, 17, 8, 3"
    assert encoder(random_obs((field,), 2)).shape == (2, 7)
    build_encoder((Field("maps", "uint8", (4, 21, 21)),), ModelSettings(encoder="convnet_grid", fc=(4,)))
    with pytest.raises(ConfigError, match="at least 21x21"):
        build_encoder((Field("maps", "uint8", (4, 20, 20)),), ModelSettings(encoder="convnet_grid", fc=(4,)))


def test_boards_are_read_flat():
    fields = (Field("board", "int8", (6, 7, 2)), Field("planes", "float32", (20, 8, 8)))
    encoder = build_encoder(fields, ModelSettings(mlp=()))
    board, planes = torch.randint(0, 2, (3, 6, 7, 2), dtype=torch.int8), torch.rand(3, 20, 8, 8)
    expected = torch.cat([board.float().flatten(1), planes.flatten(1)], dim=1)
    assert torch.equal(encoder({"board": board, "planes": planes}), expected)


def test_convnet_board_sees_the_same_five_by_five_cells_everywhere():
    fields = (Field("board", "int8", (6, 7, 2)), Field("turn", "uint8", (1,)))
    encoder = build_encoder(fields, ModelSettings(encoder="convnet_board", fc=(), mlp=()))
    assert encoder.output_size == 64 * 2 * 3 + 1, "the turn goes by"
    board = torch.zeros(2, 6, 7, 2, dtype=torch.int8)
    board[0, 1:6, 0, 1] = board[1, 1:6, 2, 1] = 1  # the same column of stones in two places
    places = encoder({"board": board, "turn": torch.zeros(2, 1, dtype=torch.uint8)})[:, :-1].view(2, 2, 3, 64)
    torch.testing.assert_close(places[0, 1, 0], places[1, 1, 2])
    assert not torch.allclose(places[0, 1, 0], places[1, 1, 0])
    conv = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    expected = functional.elu(conv.weight[:, 1, :, 0].sum(dim=1) + conv.bias)
    torch.testing.assert_close(places[0, 1, 0], expected, msg="cells are numbers, which are not divided by 255")


def test_convnet_board_reads_scaled_boards_and_images_too():
    planes, image = Field("planes", "float32", (3, 6, 7)), Field("image", "uint8", (7, 7, 3))
    encoder = build_encoder((planes, image), ModelSettings(encoder="convnet_board", fc=(5,)))
    assert [net.layout for net in encoder.convnets] == ["CHW", "HWC"]
    assert encoder({**random_obs((image,), 2), "planes": torch.randn(2, 3, 6, 7)}).shape == (2, 5)


def test_impala_reads_images_of_any_size():
    field = Field("image", "uint8", (7, 7, 3))
    encoder = build_encoder((field,), ModelSettings(encoder="impala", fc=(4,)))
    assert encoder(random_obs((field,), 2)).shape == (2, 4)


@pytest.mark.parametrize(
    ("fields", "encoder", "words"),
    [
        ((), "auto", "no observation fields"),
        ((Field("depth", "float32", (40, 40, 1)),), "auto", r"'depth' \(float32, shape \(40, 40, 1\)\)"),
        ((Field("stack", "uint8", (4, 40, 40, 3)),), "auto", "'stack'.*rank 3"),
        ((Field("speed", "float32", (2,)),), "impala", "the environment has none: speed"),
        ((Field("board", "int8", (6, 7, 2)),), "impala", r"reads images \(uint8, rank 3\), and.* has none: board"),
        ((Field("speed", "float32", (2,)),), "convnet_board", "and boards.*the environment has none: speed"),
    ],
)
def test_fields_without_an_encoder_are_named(fields, encoder, words):
    with pytest.raises(ConfigError, match=words):
        build_encoder(fields, ModelSettings(encoder=encoder))


def test_images_that_are_neither_bytes_nor_scaled_floats_are_refused():
    encoder = build_encoder((IMAGE,), SMALL)
    with pytest.raises(TypeError, match="uint8"):
        encoder({"image": torch.zeros(1, *IMAGE.shape, dtype=torch.int32)})


@pytest.mark.parametrize("name", ["convnet_simple", "mlp"])
@pytest.mark.parametrize("field", [IMAGE, Field("gray", "uint8", (1, 37, 36))])
def test_scaled_floats_are_read_as_bytes_are(name, field):
    encoder = build_encoder((field,), ModelSettings(encoder=name, fc=(8,), mlp=(8,)))
    image = random_obs((field,), 3)[field.name]
    torch.testing.assert_close(encoder({field.name: image / 255}), encoder({field.name: image}))


def test_hidden_layers_start_orthogonal():
    layer = Mlp(32, (8,), "relu").layers[0]
    torch.testing.assert_close(layer.weight @ layer.weight.t(), 2 * torch.eye(8), rtol=1e-4, atol=1e-4)
    assert not layer.bias.any()


def test_the_documented_base_class_has_no_forward_of_its_own():
    with pytest.raises(NotImplementedError):
        CustomEncoder()({})
