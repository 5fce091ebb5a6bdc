"""``rollmill export``: the policy of a checkpoint as a file that other programs open.

================  ======================================================  =======================
format            holds                                                   opened by
================  ======================================================  =======================
``safetensors``   weights and moments by name                             safetensors, any language
``onnx``          the network, batch size free                            ONNX Runtime and others
``torch-export``  the same as a program of PyTorch (``.pt2``)             ``torch.export.load``
================  ======================================================  =======================

Beside each file lies a JSON file of the same name: inputs, outputs, spaces, normalisation and all settings. The file
holds the same text inside. ``models.portable`` says what goes in and comes out.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollmill import __version__
from rollmill.core import atomic
from rollmill.core.checkpoints import Loaded, load_checkpoint, restoring, saved_settings, saved_spec
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.run_kind import UNITS
from rollmill.core.steps import FRAMES, place
from rollmill.runs.policies.base import LoadOptions
from rollmill.runs.policies.find import checkpoint_name, find_checkpoints, find_controller
from rollmill.runs.policies.online_state import require_online
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.trust import load_saved

if TYPE_CHECKING:
    from rollmill.models.portable import Portable

Format = Literal["safetensors", "onnx", "torch-export"]
SUFFIX: dict[Format, str] = {"safetensors": ".safetensors", "onnx": ".onnx", "torch-export": ".pt2"}
CARD = "rollmill"
"""Where a file holds its card: a key of its metadata."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    card: Path
    to: Format
    nbytes: int
    checkpoint: Path


def export_policy(
    target: Path,
    to: Format,
    out: Path,
    *,
    policy: int | None = None,
    best: bool = False,
    overwrite: bool = False,
    trust_code: bool = False,
    encoder: Path | None = None,
    dynamics: Path | None = None,
) -> Exported:
    """Write the policy of a run or a checkpoint to ``out``, and its card beside it.

    ``policy``: which one, where agents have several (None: the first), or which member of a population (the best).
    ``encoder`` and ``dynamics``: the models of a controller, where they are no longer where they were.
    """
    if to not in get_args(Format):
        raise ConfigError(f"--to {to}: expected one of {', '.join(get_args(Format))}")
    if out.suffix != SUFFIX[to]:
        raise ConfigError(f"--out {out}: files of this format end with {SUFFIX[to]}")
    beside = out.with_suffix(".json")
    taken = [path for path in (out, beside) if path.exists()]
    if taken and not overwrite:
        raise ConfigError(f"{taken[0]} exists; --overwrite replaces it")
    how = LoadOptions(best=best, device="cpu", trust_code=trust_code, encoder=encoder, dynamics=dynamics)
    portable, about, source = _portable(target, policy, how)
    text = json.dumps(_json(about), allow_nan=False, indent=1)
    data = _WRITERS[to](portable, text)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(out, [data])
        atomic.write_text(beside, text + "\n")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    return Exported(out, beside, to, len(data), source)


def _portable(target: Path, policy: int | None, how: LoadOptions) -> tuple[Portable, dict[str, Any], Path]:
    """Return the network that a path means, its card, and the file it is in."""
    import torch

    from rollmill.models.portable import card

    torch.set_num_threads(1)
    if (file := find_controller(target)) is not None:
        portable, about = _controller(file, how)
    else:
        loaded = load_checkpoint(find_checkpoints(target, how.best)[0])
        file = loaded.path
        kind = loaded.state.get("kind") if isinstance(loaded.state, Mapping) else None
        number = _first(loaded.state) if policy is None else policy
        portable, about = _offline(loaded) if kind == "offline" else _online(loaded, number, how.trust_code)
        about = {"checkpoint": checkpoint_name(file), "mean_return": loaded.metric, "policy": number, **about}
    origin = {"format": "rollmill policy", "version": 1, "rollmill": __version__}
    return portable, {**origin, **about, **card(portable)}, file


def _first(state: Any) -> int:
    """Return the policy that is meant where none is named; whether it is there is seen when it is taken."""
    population = state.get("population") if isinstance(state, Mapping) else None
    return int(population["best"]) if isinstance(population, Mapping) else 0


Parts = tuple["Portable", dict[str, Any]]
"""A network, and what its card says about where it comes from."""


def _online(loaded: Loaded, number: int, trust_code: bool) -> Parts:
    from rollmill.models.actor_critic import build_model
    from rollmill.models.portable import PortablePolicy
    from rollmill.models.saving import load_weights

    state = require_online(loaded).state
    config = load_saved(TrainConfig, state["config"], loaded.path, trust_code=trust_code)
    spec, learners = saved_spec(loaded.path, state["spec"]), state["learners"]
    if not 0 <= number < len(learners):
        raise ConfigError(f"--policy {number}: {loaded.path} holds {len(learners)}, counted from 0")
    model = build_model(spec, config.model)
    with restoring(loaded.path, f"learners.{number}.model"):
        load_weights(model, learners[number]["model"])
    about = {**place(loaded.step, FRAMES), "model": to_dict(config.model), "env": to_dict(config.env)}
    return PortablePolicy(model, spec), about


def _offline(loaded: Loaded) -> Parts:
    import torch

    from rollmill.models.portable import PortablePolicy
    from rollmill.offline.actor_critic import ValuePolicy
    from rollmill.offline.portable import PortableSequence
    from rollmill.runs.policies.offline import load_network, require_offline
    from rollmill.runs.settings.offline import OfflineConfig

    state = require_offline(loaded).state
    config = saved_settings(OfflineConfig, state["config"], loaded.path)
    spec = saved_spec(loaded.path, state["spec"])
    network = load_network(loaded, config, torch.device("cpu"))
    about = {**place(loaded.step, UNITS["offline"]), "algorithm": config.algorithm, "env": dict(state["env"])}
    if isinstance(network, ValuePolicy):
        return PortablePolicy(network.policy, spec), {**about, "model": to_dict(network.network)}
    about |= {"model": to_dict(config.model), "targets": state["targets"]}
    return PortableSequence(network, spec), about


def _controller(file: Path, how: LoadOptions) -> Parts:
    from rollmill.runs.policies.controller import load_world_model
    from rollmill.worldmodel.controller.portable import PortableController

    policy = load_world_model(file, how)
    spec = policy.require_spec()
    controller = policy.models.controller_state(policy.settings, spec, 1)
    portable = PortableController(policy.models.encoder, controller, policy.weights, spec)
    about = {"checkpoint": policy.name, **place(policy.frames, policy.unit)}
    return portable, {**about, "model": to_dict(policy.settings), "env": to_dict(policy.require_env())}


def _json(value: Any) -> Any:
    """Return a value for JSON: bounds that are not there, and returns that are not known, become null."""
    if isinstance(value, dict):
        return {key: _json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------ formats


def _safetensors(policy: Portable, text: str) -> bytes:
    from rollmill.models.saving import weights_of

    with _needs("safetensors"):
        from safetensors.numpy import save
    data: bytes = save(weights_of(policy.network), metadata={CARD: text})
    return data


def _torch_export(policy: Portable, text: str) -> bytes:
    import torch

    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(_program(policy), buffer, extra_files={f"{CARD}.json": text})
    return buffer.getvalue()


def _onnx(policy: Portable, text: str) -> bytes:
    import torch

    with _needs("onnx"):
        import onnx
        import onnxscript  # noqa: F401 - torch.onnx needs it, and says so less clearly
    with _quiet():
        program = torch.onnx.export(
            _program(policy),
            dynamo=True,
            input_names=[field.name for field in policy.inputs],
            output_names=list(policy.outputs),
            verbose=False,
        )
    assert program is not None, "asked for with dynamo=True"
    model = program.model_proto
    onnx.helper.set_model_props(model, {CARD: text})
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "rows"
    data: bytes = model.SerializeToString()
    return data


_WRITERS: dict[Format, Callable[[Portable, str], bytes]] = {
    "safetensors": _safetensors,
    "onnx": _onnx,
    "torch-export": _torch_export,
}


def _program(policy: Portable) -> Any:
    """Trace the network with torch.export; the first axis of all inputs is free."""
    import torch

    inputs = policy.example()
    rows = {0: torch.export.Dim("rows")}
    with torch.no_grad():
        policy(*inputs)  # what is made once and kept must not be made while it is traced
        return torch.export.export(policy, inputs, dynamic_shapes=(tuple(rows for _ in inputs),))


@contextlib.contextmanager
def _needs(package: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(f'this format needs {package}: pip install "rollmill[export]"') from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch's exporters say about their own insides, within this context."""
    levels = {log: log.level for log in map(logging.getLogger, ("torch.onnx", "onnx_ir"))}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
