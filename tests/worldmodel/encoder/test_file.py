from pathlib import Path

import pytest
import torch
from image_stores import SHAPE, TINY, tiny_encoder

from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.imports import import_object
from rollmill.core.tree_file import save_tree
from rollmill.models.saving import load_weights, weights_of
from rollmill.worldmodel.encoder.file import (
    KINDS,
    ImageEncoder,
    build_encoder,
    load_encoder,
    save_encoder,
)
from rollmill.worldmodel.files import ENCODER


def random_images(n: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def test_every_kind_resolves() -> None:
    for kind, target in KINDS.items():
        found = import_object(target, "encoder")
        assert issubclass(found, ImageEncoder)
        assert build_encoder(kind, SHAPE).kind == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [SHAPE, (21, 14, 1)])
def test_the_contract_of_every_kind(kind: str, shape: tuple[int, int, int]) -> None:
    encoder = build_encoder(kind, shape, **TINY)
    images = random_images(6, shape)
    loss, metrics = encoder.loss(images, torch.Generator().manual_seed(1))
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())
    assert "reconstruction" in metrics
    encoder.eval()
    mean, std = encoder.encode(images)
    assert mean.shape == std.shape == (6, 4)
    assert mean.dtype == std.dtype == torch.float32
    assert (std > 0).all()
    painted = encoder.decode(mean)
    assert painted.shape == images.shape
    assert painted.dtype == torch.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_is_the_only_noise(kind: str) -> None:
    encoder = build_encoder(kind, SHAPE, **TINY).eval()
    with torch.no_grad():
        losses = [float(encoder.loss(random_images(5), torch.Generator().manual_seed(seed))[0]) for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_is_all_that_is_needed(kind: str, tmp_path: Path) -> None:
    encoder = build_encoder(kind, SHAPE, **TINY)
    encoder.loss(random_images(9), torch.Generator())  # moves the running moments of those that have any
    save_encoder(tmp_path / ENCODER.name, encoder, {"steps": 7})
    for path in (tmp_path / ENCODER.name, tmp_path, str(tmp_path)):
        loaded = load_encoder(path)
        assert loaded.metadata == {"steps": 7}
        assert loaded.image_shape == SHAPE
        assert loaded.architecture == encoder.architecture
        assert not loaded.training
        assert not any(p.requires_grad for p in loaded.parameters())
        for one, two in zip(encoder.eval().encode(random_images(3)), loaded.encode(random_images(3))):
            assert torch.equal(one, two)
    assert len(ENCODER.checksum(tmp_path)) == 64


def test_encoders_of_other_weights_have_other_checksums(tmp_path: Path) -> None:
    one, two = (tiny_encoder(tmp_path / f"{seed}.bin", seed) for seed in (1, 2))
    assert ENCODER.checksum(one) != ENCODER.checksum(two)


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_tree(tmp_path / "x.bin", {"format": "something else"})
    with pytest.raises(CheckpointError, match="not an encoder"):
        load_encoder(tmp_path / "x.bin")
    save_tree(tmp_path / "y.bin", {"format": "image_encoder", "version": 99})
    with pytest.raises(CheckpointError, match="newer version"):
        load_encoder(tmp_path / "y.bin")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_encoder(tmp_path / "nothing.bin")


def test_unknown_kinds_and_unfitting_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="known: vae, autoencoder"):
        build_encoder("magic", SHAPE)
    weights = weights_of(build_encoder("vae", SHAPE, **TINY))
    with pytest.raises(CheckpointError, match=r"the saved weights do not fit"):
        load_weights(build_encoder("vae", SHAPE, size=5, channels=(4, 8)), weights)
