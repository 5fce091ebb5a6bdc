import torch
from torch import Tensor, nn

from rollmill.optim.finite import explain_non_finite


class Wild(nn.Module):
    """Divides by its input."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.0 / x


def test_every_place_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    good = torch.ones(3, 2)
    bad = good.clone()
    bad[1, 0] = torch.nan
    assert "rewards at index [1, 0]" in explain_non_finite(model, lambda: model(bad), {"images": good, "rewards": bad})
    with torch.no_grad():
        model[2].weight[0, 1] = torch.inf
    assert "the weights: 2.weight at index [0, 1]" in explain_non_finite(model, lambda: model(good), {"x": good})

    wild = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Wild())
    with torch.no_grad():
        wild[0].bias -= 100.0
    assert "the output of layer 2 (Wild)" in explain_non_finite(wild, lambda: wild(good), {"x": good})

    steep = nn.Linear(2, 1)
    steep.weight.grad = torch.tensor([[0.0, torch.nan]])
    assert "the gradient of weight at index [0, 1]" in explain_non_finite(steep, lambda: steep(good), {"x": good})
    steep.weight.grad = None
    terms = {"value": 1.0, "entropy": float("inf")}
    assert "the loss term entropy (inf)" in explain_non_finite(steep, lambda: steep(good), {"x": good}, terms)
    assert "no single place" in explain_non_finite(steep, lambda: steep(good), {"x": torch.ones(1, dtype=torch.uint8)})


def test_a_bad_buffer_is_named_by_the_layer_that_reads_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    model[1].running_mean[0] = torch.nan  # type: ignore[index]
    assert "layer 1 (BatchNorm1d)" in explain_non_finite(model, lambda: model(torch.ones(3, 2)), {})
