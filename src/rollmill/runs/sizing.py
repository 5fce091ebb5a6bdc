"""How many workers, environments and threads a run gets when its config leaves them at 0 (automatic).

``resolve`` is pure: the same config on the same ``Machine`` gives the same numbers, and numbers that are set
are never changed. What it gives is what is printed, saved and resumed, so a run that continues elsewhere keeps them.

====================  ==========================================================================================
workers               one per core; with a GPU one core (of each rank) stays free for the thread that answers, unless
                      that thread can share a core with a worker (async, one rank, images: simulators are slow)
envs_per_worker       16, or fewer where that many would be working on more than ``FRESH_BATCHES`` at once
groups                2: one half is stepped while the other waits for its actions; 4 where a core stays free: answers
                      from a GPU take longer than steps of fast environments
threads               (CPU, images) one per core, as long as each gets ``THREAD_ROWS`` rows of a minibatch; else 1
precision             (if "auto") bfloat16 for images where the machine has units for it, else float32
====================  ==========================================================================================

Numbers are decided twice: before anything starts, and once more when the env's spec is known (agents, images).
A batch must be a whole number of segments: envs and groups are chosen so that it is. Serial mode repeats bit for
bit, so it must not depend on the machine: 1 worker, 8 envs, float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rollmill.core.fields import EnvSpec
from rollmill.core.machine import available_cores, has_fast_bfloat16, may_have_gpu
from rollmill.runs.settings import TrainConfig, check

AUTOMATIC = (("sampling", "workers"), ("sampling", "envs_per_worker"), ("sampling", "groups"), ("learning", "threads"))
"""(block, key) of the numbers that 0 leaves to ``resolve``."""
ENVS = 16
SERIAL_ENVS = 8
GROUPS, APART_GROUPS = 2, 4
THREAD_ROWS = 256
"""Rows of a minibatch that keep a learner thread busy: with fewer, threads wait for each other."""
FRESH_BATCHES = {"async": 4, "sync": 1}
"""Batches that all lanes together may be filling: more would be learnt from when the policy has long moved on."""
SPARE_CORE_FROM = 4
"""From this many cores on, a worker less is cheaper than a main process that has to wait for its turn."""


@dataclass(frozen=True)
class Machine:
    """What the numbers depend on."""

    cores: int
    gpu: bool = False
    bfloat16: bool = False
    """Units that multiply bfloat16."""

    @classmethod
    def here(cls, device: str = "auto") -> Machine:
        """This machine, as seen by a run with ``learning.device=device``."""
        gpu = _uses_gpu(device)
        return cls(available_cores(), gpu, _gpu_has_bfloat16() if gpu else has_fast_bfloat16())


def _uses_gpu(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    if not may_have_gpu():
        return False
    import torch  # only now: a machine without a GPU imports it while the env is being looked at

    return torch.cuda.is_available()


def _gpu_has_bfloat16() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def is_automatic(config: TrainConfig) -> bool:
    """Whether ``resolve`` has something to decide."""
    return config.learning.precision == "auto" or any(
        getattr(getattr(config, block), name) == 0 for block, name in AUTOMATIC
    )


def size(config: TrainConfig, spec: EnvSpec | None = None) -> TrainConfig:
    """The config with all numbers decided for this machine; ConfigError when it is wrong."""
    check(config)  # before the machine is looked at, which may take seconds
    if is_automatic(config):
        config = resolve(config, Machine.here(config.learning.device), spec)
        check(config)
    return config


def resolve(config: TrainConfig, machine: Machine, spec: EnvSpec | None = None) -> TrainConfig:
    """Replace every automatic number. A batch that is no multiple of the smallest segment is left to ``check``."""
    s, agents = config.sampling, spec.agents if spec else 1
    serial, images = s.mode == "serial", _has_images(config, spec)
    apart = machine.gpu and not (serial or (s.mode == "async" and config.learning.ranks == 1 and images))
    workers = s.workers or (1 if serial else _workers(machine, config.learning.ranks, apart))
    wanted = SERIAL_ENVS if serial else _fresh_envs(config, workers, agents)
    groups, lanes = _fitting(config, wanted, agents, APART_GROUPS if apart else GROUPS)
    threads = config.learning.threads or (1 if serial or machine.gpu or not images else _threads(config, machine.cores))
    precision = config.learning.precision
    if precision == "auto":
        precision = "bfloat16" if images and machine.bfloat16 and not serial else "float32"
    return replace(
        config,
        sampling=replace(s, workers=workers, envs_per_worker=groups * lanes, groups=groups),
        learning=replace(config.learning, threads=threads, precision=precision),
    )


def _workers(machine: Machine, ranks: int, apart: bool) -> int:
    """The same number for each rank, and at least one; ``apart``: the thread that answers wants a core of its own."""
    cores = machine.cores // ranks
    spare = apart and cores >= SPARE_CORE_FROM
    return max(1, cores - 1 if spare else cores) * ranks


def rows_in_flight(config: TrainConfig, agents: int = 1) -> int:
    """Rows that all lanes of a resolved config are filling at a time: one segment each."""
    s = config.sampling
    return s.workers * s.envs_per_worker * s.rollout * agents


def _fresh_envs(config: TrainConfig, workers: int, agents: int) -> int:
    """Envs per worker, so many at most that experience is fresh when it is learnt from."""
    limit = FRESH_BATCHES[config.sampling.mode] * config.learning.batch_size
    return max(1, min(ENVS, limit // (workers * config.sampling.rollout * agents)))


def _fitting(config: TrainConfig, wanted: int, agents: int, groups: int) -> tuple[int, int]:
    """(groups, envs of a group), as near to what is wanted as a whole number of segments per batch allows."""
    shapes = list(_shapes(config, wanted, groups))
    rows = config.sampling.rollout * agents * config.learning.ranks
    return next((shape for shape in shapes if config.learning.batch_size % (rows * shape[1]) == 0), shapes[-1])


def _shapes(config: TrainConfig, wanted: int, best: int) -> Iterator[tuple[int, int]]:
    """All allowed (groups, envs of a group), the best first and the smallest segments last."""
    s = config.sampling
    if s.envs_per_worker:
        envs = s.envs_per_worker
        counts = [s.groups] if s.groups else [count for count in range(1, envs + 1) if envs % count == 0]
        counts.sort(key=lambda count: (abs(count - best), count))
        # The last is what an error will be about: the smallest segments these envs can make.
        counts.append(max(counts))
        yield from ((count, envs // count) for count in counts)
    else:
        groups = s.groups or best
        yield from ((groups, lanes) for lanes in range(max(1, wanted // groups), 0, -1))


def thread_limit(config: TrainConfig) -> int:
    """The most learner threads that find work: parts of a minibatch, or micro-batches where their size is set."""
    rows = config.learning.batch_size // config.learning.ranks // config.learning.minibatches
    return max(1, -(-rows // config.learning.micro_batch) if config.learning.micro_batch else rows // THREAD_ROWS)


def _has_images(config: TrainConfig, spec: EnvSpec | None) -> bool:
    """Whether the network has a convnet, as far as that is known."""
    encoder = config.model.encoder
    if encoder == "mlp":
        return False
    return any(field.is_image for field in spec.observation) if spec else encoder != "auto"


def _threads(config: TrainConfig, cores: int) -> int:
    # For images only: the passes of a small network are too short, its threads would wait for the interpreter.
    return min(max(1, cores // config.learning.ranks), thread_limit(config))
