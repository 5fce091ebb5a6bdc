"""Finds where a NaN or infinity began: in the data, the weights, a layer, a loss term, or a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rollmill.core.errors import NonFiniteError


def explain_non_finite(
    model: nn.Module,
    forward: Callable[[], object],
    inputs: Mapping[str, Tensor],
    terms: Mapping[str, float] | None = None,
) -> str:
    """Return the first bad place in words.

    ``forward`` repeats the pass that went wrong, ``inputs`` are what it reads, ``terms`` are parts of its loss.
    """
    if place := first_bad_place(inputs):
        return f"the batch itself: {place}"
    # Buffers are left out: running moments only pass on what others did, and the layer that reads them is named.
    if place := first_bad_place(dict(model.named_parameters())):
        return f"the weights: {place}"
    if layer := _first_bad_layer(model, forward):
        return f"the output of layer {layer}"
    for name, value in (terms or {}).items():
        if not math.isfinite(value):
            return f"the loss term {name} ({value})"
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    if place := first_bad_place(gradients):
        return f"the gradient of {place}; a lower learning rate may help"
    return "no single place (it vanished when the step was repeated)"


def non_finite(when: str, what: str, kept: str = "The weights were") -> NonFiniteError:
    """Make the error that stops a run: ``when`` it was noticed, ``what`` is known, and what was ``kept`` from it."""
    return NonFiniteError(f"NaN or infinity {when}: {what}. {kept} not changed by this step.")


def first_bad_place(tensors: Mapping[str, Tensor]) -> str:
    """Find the first NaN or infinity, and return its name and index; empty where there is none."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        bad = (~torch.isfinite(tensor)).nonzero()
        if len(bad):
            return f"{name} at index {bad[0].tolist()}"
    return ""


@torch.no_grad()
def _first_bad_layer(model: nn.Module, forward: Callable[[], object]) -> str:
    """Repeat the forward pass and listen to every module; the first to speak nonsense is named."""
    found: list[str] = []

    def listen(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            if first_bad_place({str(k): x for k, x in enumerate(outputs) if isinstance(x, Tensor)}):
                found.append(f"{name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [listen(name, module) for name, module in model.named_modules() if name]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""
