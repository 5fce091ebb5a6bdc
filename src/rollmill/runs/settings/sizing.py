"""How many workers, environments and threads a run gets when its config leaves them at 0 (automatic).

``resolve`` is pure: the same config on the same ``Machine`` gives the same numbers, and numbers that are set
are never changed. What it gives is what is printed, saved and resumed, so a run that continues elsewhere keeps them.

====================  ==========================================================================================
workers               one per core; with a GPU one core (of each rank) stays free for the inference thread, unless
                      that thread can share a core with a worker (async, one rank, images: simulators are slow).
                      Sync mode: as many as make a batch a whole number of rounds of all environments
envs_per_worker       16, or fewer where that many would be working on more than ``FRESH_BATCHES`` at once, or do not
                      make whole rounds
groups                2: one half is stepped while the other waits for its actions; 4 where a core stays free: answers
                      from a GPU take longer than steps of fast environments
batch_size            2048, or half of what all environments are filling at a time where that is more (sync: all of it)
                      With a suite (``env.tasks``): as many as its tasks can share evenly
threads               (CPU, images) one per core, as long as each gets ``THREAD_ROWS`` rows of a minibatch; else 1
precision             (if "auto") bfloat16 for images where the machine has units for it, else float32
====================  ==========================================================================================

In a population (``pbt.members``) a batch is one member's, and groups are chosen so that each member has as many.
Numbers are decided twice: before anything starts, and once more when the env's spec is known (agents, images).
A batch must be a whole number of segments: envs and groups are chosen so that it is. Serial mode repeats bit for
bit, so it must not depend on the machine: 1 worker, 8 envs, float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from rollmill.core.fields import EnvSpec
from rollmill.core.machine import available_cores, has_fast_bfloat16, may_have_gpu
from rollmill.envs.tasks.suite import tasks_of
from rollmill.runs.settings.train import TrainConfig, check

AUTOMATIC = (
    *(("sampling", "workers"), ("sampling", "envs_per_worker"), ("sampling", "groups")),
    *(("learning", "threads"), ("learning", "batch_size")),
)
"""(block, key) of the numbers that 0 leaves to ``resolve``."""
BATCH = 2048
ENVS = 16
SERIAL_ENVS = 8
TASK_ENVS = 64
"""Environments of a worker up to which each of its groups holds every task of a suite."""
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
        """Return this machine, as seen by a run with ``learning.device=device``."""
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
    """Return whether ``resolve`` has something to decide."""
    return config.learning.precision == "auto" or any(
        getattr(getattr(config, block), name) == 0 for block, name in AUTOMATIC
    )


def size(config: TrainConfig, spec: EnvSpec | None = None) -> TrainConfig:
    """Return the config with all numbers decided for this machine. Raises ConfigError if it is wrong."""
    check(config)  # before the machine is looked at, which may take seconds
    if is_automatic(config):
        config = resolve(config, Machine.here(config.learning.device), spec)
        check(config)
    return config


def resolve(config: TrainConfig, machine: Machine, spec: EnvSpec | None = None) -> TrainConfig:
    """Replace every automatic number. A batch that is no multiple of the smallest segment is left to ``check``."""
    agents = spec.agents if spec else 1
    machine = replace(machine, cores=machine.cores * config.learning.machines)  # all machines are like this one
    config = _with_tasks(config, machine)
    if not config.learning.batch_size:
        config = replace(config, learning=replace(config.learning, batch_size=_batch(config, machine, agents)))
    s = config.sampling
    serial, images = s.mode == "serial", _has_images(config, spec)
    apart = machine.gpu and not (serial or (s.mode == "async" and config.learning.ranks == 1 and images))
    workers = s.workers or (1 if serial else _workers(machine, config.learning.ranks, apart))
    wanted = SERIAL_ENVS if serial else _fresh_envs(config, workers, agents)
    unit = config.pbt.members // gcd(workers, config.pbt.members)
    best = -(-(APART_GROUPS if apart else GROUPS) // unit) * unit
    if config.on_policy:
        workers, groups, lanes = _whole_rounds(config, machine.cores, agents, best)
    else:
        groups, lanes = _fitting(config, wanted, agents, best, unit)
    threads = config.learning.threads or (1 if serial or machine.gpu or not images else _threads(config, machine.cores))
    precision = config.learning.precision
    if precision == "auto":
        precision = "bfloat16" if images and machine.bfloat16 and not serial else "float32"
    return replace(
        config,
        sampling=replace(s, workers=workers, envs_per_worker=groups * lanes, groups=groups),
        learning=replace(config.learning, threads=threads, precision=precision),
    )


def _with_tasks(config: TrainConfig, machine: Machine) -> TrainConfig:
    """Set workers and environments that all tasks of a suite can share evenly, as far as they are automatic.

    Groups hold every task equally often where that makes no more than ``TASK_ENVS`` of them; else the tasks lie over
    several groups, or workers.
    """
    tasks, s = len(tasks_of(config.env)), config.sampling
    if not tasks or config.env.task:
        return config
    workers = s.workers or (1 if s.mode == "serial" else max(1, machine.cores // config.learning.ranks))
    if config.env.task_spread == "worker":
        workers, envs = s.workers or -(-workers // tasks) * tasks, s.envs_per_worker or SERIAL_ENVS
        return replace(config, sampling=replace(s, workers=workers, envs_per_worker=envs))
    envs, groups = s.envs_per_worker, s.groups or GROUPS
    if not envs:
        step = groups * tasks // gcd(groups * tasks, 1 if groups * tasks <= TASK_ENVS else workers)
        envs = step * max(1, ENVS // step)
        envs = -(-envs // groups) * groups
    workers *= 1 if workers * envs % tasks == 0 else tasks // gcd(tasks, workers * envs)
    settings = replace(s, workers=s.workers or workers * config.learning.ranks, envs_per_worker=envs)
    return replace(config, sampling=settings)


def _batch(config: TrainConfig, machine: Machine, agents: int) -> int:
    """Return a batch for the environments asked for: 2048 rows, or half of what they are filling at a time.

    Smaller ones would be many short steps, with most rows old before their turn comes. In sync mode it is all of it.
    """
    s, ranks = config.sampling, config.learning.ranks
    unit = s.rollout * agents * ranks
    if not s.envs_per_worker or config.learning.algorithm == "sac":
        return -(-BATCH // unit) * unit
    workers = s.workers or (1 if s.mode == "serial" else machine.cores // ranks * ranks or ranks)
    rows = workers * s.envs_per_worker * s.rollout * agents // config.pbt.members
    if config.on_policy:
        return rows * max(1, BATCH // rows)
    groups = s.groups or (GROUPS if s.envs_per_worker % GROUPS == 0 else 1)
    segment = s.envs_per_worker // groups * unit
    return -(-max(BATCH, rows // 2) // segment) * segment


def _workers(machine: Machine, ranks: int, apart: bool) -> int:
    """Return the workers, as many for each rank, at least one; ``apart``: the inference thread wants a core."""
    cores = machine.cores // ranks
    spare = apart and cores >= SPARE_CORE_FROM
    return max(1, cores - 1 if spare else cores) * ranks


def _fresh_envs(config: TrainConfig, workers: int, agents: int) -> int:
    """Return envs per worker, so many at most that experience is fresh when it is learnt from."""
    limit = FRESH_BATCHES[config.sampling.mode] * config.learning.batch_size * config.pbt.members
    return max(1, min(ENVS, limit // (workers * config.sampling.rollout * agents)))


def _whole_rounds(config: TrainConfig, most: int, agents: int, best: int) -> tuple[int, int, int]:
    """Return (workers, groups, envs of a group) of sync mode: a batch is a whole number of rounds of all lanes.

    As many workers as possible, but two envs for each (one is stepped while the other waits), then as many envs. What
    is set stays set, and ``check`` says what is wrong with it.
    """
    s, ranks = config.sampling, config.learning.ranks
    members = config.pbt.members
    lanes = config.learning.batch_size * members // (s.rollout * agents)
    workers = [s.workers] if s.workers else [count for count in range(most, 0, -1) if count % ranks == 0]
    envs = [s.envs_per_worker] if s.envs_per_worker else list(range(ENVS, 0, -1))
    pairs = [(w, e) for w in workers for e in envs if lanes % (w * e) == 0 and e % (s.groups or 1) == 0]
    pairs = [(w, e) for w, e in pairs if e % (members // gcd(w, members)) == 0]
    pairs.sort(key=lambda pair: pair[1] < GROUPS)
    count, each = next(iter(pairs), (workers[0], s.envs_per_worker or s.groups or 1))
    groups = s.groups or _whole_groups(each, best, members // gcd(count, members))
    return count, groups, each // groups


def _whole_groups(envs: int, best: int, unit: int) -> int:
    """Return into how many groups ``envs`` divide evenly: at most ``best``, a multiple of ``unit`` if possible."""
    fits = [g for g in range(max(best, unit), 0, -1) if envs % g == 0]
    return next((g for g in fits if g % unit == 0), fits[0])


def _fitting(config: TrainConfig, wanted: int, agents: int, groups: int, unit: int) -> tuple[int, int]:
    """Return (groups, envs of a group), as near to what is wanted as a whole number of segments per batch allows.

    Groups are a multiple of ``unit`` where that can be.
    """
    shapes = list(_shapes(config, wanted, groups))
    shapes = [shape for shape in shapes if shape[0] % unit == 0] or shapes
    rows = config.sampling.rollout * agents * config.learning.ranks
    return next((shape for shape in shapes if config.learning.batch_size % (rows * shape[1]) == 0), shapes[-1])


def _shapes(config: TrainConfig, wanted: int, best: int) -> Iterator[tuple[int, int]]:
    """Yield all allowed (groups, envs of a group), the best first and the smallest segments last."""
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
    """Return the most learner threads that find work: parts of a minibatch, or micro-batches if their size is set."""
    rows = config.learning.batch_size // config.learning.ranks // config.learning.minibatches
    return max(1, -(-rows // config.learning.micro_batch) if config.learning.micro_batch else rows // THREAD_ROWS)


def _has_images(config: TrainConfig, spec: EnvSpec | None) -> bool:
    """Return whether the network has a convnet, as far as that is known."""
    encoder = config.model.encoder
    if encoder == "mlp":
        return False
    return any(field.is_image for field in spec.observation) if spec else encoder != "auto"


def _threads(config: TrainConfig, cores: int) -> int:
    # For images only: the passes of a small network are too short, its threads would wait for the interpreter.
    return min(max(1, cores // config.learning.ranks), thread_limit(config))
