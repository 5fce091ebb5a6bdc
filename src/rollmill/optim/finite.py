"""Where a NaN or infinity began: in the data, the weights, a layer, or a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def explain_non_finite(model: nn.Module, forward: Callable[[], object], inputs: Mapping[str, Tensor]) -> str:
    """The first bad place in words. ``forward`` repeats the pass that went wrong, ``inputs`` are what it reads."""
    for name, tensor in inputs.items():
        if (place := first_bad(tensor)) is not None:
            return f"the batch itself: {name} at index {place}"
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if (place := first_bad(parameter)) is not None:
            return f"the weights: {name} at index {place}"
    if layer := _first_bad_layer(model, forward):
        return f"the output of layer {layer}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and (place := first_bad(parameter.grad)) is not None:
            return f"the gradient of {name} at index {place}; a lower learning rate may help"
    return "no single place (it vanished when the step was repeated)"


def first_bad(tensor: Tensor) -> list[int] | None:
    """Index of the first NaN or infinity; None where there is none."""
    if not tensor.is_floating_point():
        return None
    bad = (~torch.isfinite(tensor)).nonzero()
    return bad[0].tolist() if len(bad) else None


@torch.no_grad()
def _first_bad_layer(model: nn.Module, forward: Callable[[], object]) -> str:
    """Repeat the forward pass and listen to every module; the first to speak nonsense is named."""
    found: list[str] = []

    def listen(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            if any(isinstance(x, Tensor) and first_bad(x) is not None for x in outputs):
                found.append(f"{name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [listen(name, module) for name, module in model.named_modules() if name]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""
