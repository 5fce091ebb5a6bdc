"""What a dynamics model can learn beside predicting the next latent: parts that serve its fit alone.

infilling    Spans of latents are hidden from the memory. It must carry what it knew through the gap, and a second
             memory, which reads the sequence backwards, fills the gap in from both sides.
adversarial  A discriminator tells latents that followed from latents that the model has drawn, given the memory. The
             model learns to be mistaken for the world, by the discriminator's gradient with its sign turned.

Both add a term to the loss; dreaming and acting use the causal model alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.worldmodel.dynamics.mixture import Mixture, log_likelihood, split_mixture
from rollmill.worldmodel.dynamics.settings import DynamicsSettings


class Infilling(nn.Module):
    """Fills hidden latents in, from the memory before them and one of what came after."""

    def __init__(self, latent: int, action: int, s: DynamicsSettings) -> None:
        super().__init__()
        self.latent, self.mixtures = latent, s.mixtures
        self.blank = nn.Parameter(torch.zeros(latent))
        """What the memories see in the place of a hidden latent."""
        self.back = nn.LSTM(latent + action, s.size, batch_first=True)
        self.head = nn.Linear(2 * s.size, 3 * latent * s.mixtures)

    def hide(self, latents: Tensor, hidden: Tensor) -> Tensor:
        """Return latents ``[B, L, Z]`` without those of the steps ``hidden`` ``[B, L]``."""
        return torch.where(hidden[..., None], self.blank, latents)

    def forward(self, h: Tensor, seen: Tensor, actions: Tensor, mask: Tensor) -> Mixture:
        """Return what the latents ``[B, L, Z]`` may be, each by what lies before and after it.

        ``h`` ``[B, L, size]``: memories after every step; ``seen``, ``actions``: what they have read; ``mask``: real.
        """
        before = functional.pad(h, (0, 0, 1, 0))[:, :-1]
        steps = torch.cat([seen, actions], -1) * mask[..., None]
        back: Tensor = self.back(steps.flip(1))[0].flip(1)
        after = functional.pad(back, (0, 0, 0, 1))[:, 1:]
        return split_mixture(self.head(torch.cat([before, after], -1)), self.latent, self.mixtures)


class Adversary(nn.Module):
    """Tells what followed from what was drawn."""

    def __init__(self, latent: int, s: DynamicsSettings) -> None:
        super().__init__()
        sizes = latent + s.size
        self.judge = nn.Sequential(nn.Linear(sizes, s.size), nn.SiLU(), nn.Linear(s.size, 1))

    def forward(self, h: Tensor, real: Tensor, drawn: Tensor, weight: float) -> Tensor:
        """Return the cross-entropy ``[...]`` of telling ``real`` from ``drawn`` ``[..., Z]``; 0.69: impossible.

        Its gradient goes to the judge as it is, and to ``drawn`` times ``-weight``; the memory ``h`` gets none.
        """
        turned = (1 + weight) * drawn.detach() - weight * drawn
        given = h.detach()
        true = self.judge(torch.cat([given, real], -1))[..., 0]
        false = self.judge(torch.cat([given, turned], -1))[..., 0]
        return (functional.softplus(-true) + functional.softplus(false)) / 2


def fill_nats(latents: Tensor, filled: Mixture, hidden: Tensor, mask: Tensor) -> Tensor:
    """Return mean nats per hidden latent number, times the real steps: a sum over steps, as the other losses are."""
    counted = (hidden & mask).float()
    nats = -log_likelihood(latents, filled).mean(-1)
    return (nats * counted).sum() * (mask.sum() / counted.sum().clamp_min(1.0))


def draw_through(mixture: Mixture, noise: Tensor) -> Tensor:
    """Draw every number ``[..., Z]`` so that gradients go through: to the mean, the deviation and the weights.

    ``noise`` ``[..., Z, K + 1]`` is uniform in its first K numbers (they choose a component) and normal in the last.
    """
    uniform = noise[..., :-1].clamp(1e-20, 1 - 1e-7)
    shares = torch.softmax(mixture.logits - (-uniform.log()).log(), -1)
    chosen = functional.one_hot(shares.argmax(-1), shares.shape[-1]).to(shares.dtype)
    weight = chosen + shares - shares.detach()  # the value of the choice, the gradient of the shares
    mean = (weight * mixture.mean).sum(-1)
    std = (weight * mixture.log_std.exp()).sum(-1)
    return mean + std * noise[..., -1]
