import torch
from image_stores import SHAPE, TINY
from torch.distributions import Normal, kl_divergence

from rollmill.worldmodel.encoder.vae import VariationalEncoder, kl_from_standard_normal


def test_nats_are_those_of_the_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std = (torch.randn(5, 3, generator=generator) for _ in range(2))
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0))
    torch.testing.assert_close(kl_from_standard_normal(mean, log_std), expected)


def test_nats_below_the_tolerance_cost_nothing() -> None:
    images = torch.randint(0, 256, (8, *SHAPE), dtype=torch.uint8)

    def cost(tolerance: float, beta: float) -> float:
        torch.manual_seed(0)
        encoder = VariationalEncoder(SHAPE, **TINY, kl_tolerance=tolerance, beta=beta)  # type: ignore[arg-type]
        loss, metrics = encoder.loss(images, torch.Generator().manual_seed(1))
        assert 0 < float(metrics["kl"]) < 4.0
        return float(loss.detach() - metrics["reconstruction"] - beta * metrics["kl"])

    assert abs(cost(0.0, 1.0)) < 1e-3  # all nats are paid
    assert cost(1.0, 1.0) > 0.1  # as much as the tolerance, whatever is used of it
    free = VariationalEncoder(SHAPE, **TINY, kl_tolerance=1.0, beta=1.0)  # type: ignore[arg-type]
    loss, metrics = free.loss(images, torch.Generator())
    gradient = torch.autograd.grad(loss - metrics["reconstruction"], [free.moments.weight], allow_unused=True)[0]
    with_cost = torch.autograd.grad(free.loss(images, torch.Generator())[0], [free.moments.weight])[0]
    assert gradient is not None
    torch.testing.assert_close(gradient, with_cost)  # the constant cost adds nothing to the gradient


def test_latents_that_say_nothing_are_not_active() -> None:
    encoder = VariationalEncoder(SHAPE, **TINY)  # type: ignore[arg-type]
    torch.nn.init.zeros_(encoder.moments.weight)
    torch.nn.init.zeros_(encoder.moments.bias)
    images = torch.zeros(3, *SHAPE, dtype=torch.uint8)
    assert float(encoder.loss(images, torch.Generator())[1]["active"]) == 0
    torch.nn.init.constant_(encoder.moments.bias[:2], 2.0)
    assert float(encoder.loss(images, torch.Generator())[1]["active"]) == 2
