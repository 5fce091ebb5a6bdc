import torch
from image_stores import SHAPE, TINY

from rollmill.worldmodel.encoder.autoencoder import NoisyAutoencoder


def test_latents_have_the_scale_that_the_noise_is_measured_by() -> None:
    encoder = NoisyAutoencoder(SHAPE, **TINY, noise=0.3)  # type: ignore[arg-type]
    with torch.no_grad():
        encoder.latent.weight *= 100.0  # a network that tries to outgrow the noise
    images = torch.randint(0, 256, (64, *SHAPE), dtype=torch.uint8)
    mean, std = encoder.encode(images)
    torch.testing.assert_close(mean.mean(dim=0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(mean.var(dim=0, unbiased=False), torch.ones(4), atol=1e-2, rtol=0)
    assert (std == 0.3).all()


def test_encoding_does_not_depend_on_the_rest_of_the_batch() -> None:
    encoder = NoisyAutoencoder(SHAPE, **TINY)  # type: ignore[arg-type]
    images = torch.randint(0, 256, (16, *SHAPE), dtype=torch.uint8)
    for _ in range(3):
        encoder.loss(images, torch.Generator())
    encoder.eval()
    torch.testing.assert_close(encoder.encode(images)[0][:2], encoder.encode(images[:2])[0])
