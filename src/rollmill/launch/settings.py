"""How runs are started: which back end, how many at once, and what a scheduler is told.

They stand under ``launch:`` in a description, and as KEY=VALUE words behind ``rollmill launch run``.
"""

from __future__ import annotations

import re
import shlex
import string
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rollmill.core.config.schema import settings

BACKENDS = {
    "local": "rollmill.launch.backends.local:LocalBackEnd",
    "slurm": "rollmill.launch.backends.slurm:SlurmBackEnd",
    "ray": "rollmill.launch.backends.ray:RayBackEnd",
    "ngc": "rollmill.launch.backends.ngc:NgcBackEnd",
}
"""Where runs can be started: the class of each place (``backends.base.BackEnd``), imported when it is used. Its
constructor gets the settings of the same name, or nothing where there are none."""

if TYPE_CHECKING:
    BackEndName = str
else:
    BackEndName = Literal[tuple(BACKENDS)]


@settings
class LocalSettings:
    """Processes on this machine."""

    parallel: int = 0
    """Runs at the same time; 0: one, or as many as fit on the GPUs."""

    pause: float = 0.0
    """Seconds between two starts."""

    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs to use; each run sees one of them (CUDA_VISIBLE_DEVICES). Empty: leave it alone."""

    per_gpu: int = 1
    """Runs that share a GPU."""

    cores: Literal["share", "all"] = "share"
    """share: cores are divided among the runs, and each is pinned to its own. all: every run may use all of them."""

    virtual_display: bool = False
    """Give each run a virtual display (Xvfb), for simulators that need one."""

    def __post_init__(self) -> None:
        if self.parallel < 0 or self.pause < 0:
            raise ValueError("parallel and pause must not be negative")
        if self.per_gpu < 1:
            raise ValueError("per_gpu must be at least 1")
        if len(set(self.gpus)) != len(self.gpus) or any(gpu < 0 for gpu in self.gpus):
            raise ValueError(f"gpus={list(self.gpus)}: numbers of GPUs must not repeat or be negative")
        if self.gpus and self.parallel > len(self.gpus) * self.per_gpu:
            raise ValueError(
                f"parallel={self.parallel} runs do not fit on {len(self.gpus)} GPUs with per_gpu={self.per_gpu}"
            )

    @property
    def slots(self) -> int:
        """Runs at the same time."""
        return self.parallel or max(1, len(self.gpus) * self.per_gpu)


@settings
class SlurmSettings:
    """An array job; what is unset is left to the cluster's defaults."""

    partition: str | None = None
    """Partition (queue)."""

    time: str | None = None
    """Time limit of one run, as sbatch takes it: 24:00:00 or 2-00:00:00."""

    memory: str | None = None
    """Memory of one run: 16G."""

    cpus: int = 0
    """Cores of one run; 0: the cluster's default."""

    gpus: int = 0
    """GPUs of one run."""

    parallel: int = 0
    """Runs of the array that may run at the same time; 0: as many as the cluster lets."""

    account: str | None = None
    """Account to charge."""

    requeue: bool = True
    """Preempted runs, and those whose node died, go back into the queue and continue from their checkpoint."""

    warn_seconds: int = 0
    """So long before the time limit a run is saved, ended and put back into the queue; 0: off."""

    virtual_display: bool = False
    """Give each run a virtual display (Xvfb), for simulators that need one."""

    temp_dir: Path | None = None
    """A folder of the node's own disk: each run gets a temporary folder there (TMPDIR), removed at its end."""

    lines: tuple[str, ...] = ()
    """More options for sbatch, as they stand behind #SBATCH: "--constraint=a100"."""

    setup: tuple[str, ...] = ()
    """Shell lines before the run: "module load cuda", "rollmill doctor"."""

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.parallel, self.warn_seconds) < 0:
            raise ValueError("cpus, gpus, parallel and warn_seconds must not be negative")
        if self.warn_seconds and not (self.time and self.requeue):
            raise ValueError("warn_seconds needs a time limit (time) and requeue")
        for line in self.lines:
            if not line.startswith("-") or "\n" in line:
                raise ValueError(f"lines: {line!r} is no option of sbatch; one looks like --constraint=a100")
        for name in ("partition", "time", "memory", "account"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.:,/@+-]+", value):
                raise ValueError(f"{name}={value!r}: sbatch would not take this")


@settings
class RaySettings:
    """Jobs of a running Ray cluster."""

    address: str = "http://127.0.0.1:8265"
    """The cluster's dashboard, where jobs are handed in."""

    cpus: float = 1.0
    """Cores that Ray counts for one run; runs beyond what it has wait."""

    gpus: float = 0.0
    """GPUs that Ray counts for one run; 0.5 lets two share one."""

    parallel: int = 0
    """Jobs handed in at the same time; 0: all."""

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus, self.parallel) < 0:
            raise ValueError("cpus, gpus and parallel must not be negative")


@settings
class NgcSettings:
    """NVIDIA's NGC Base Command, through a command template."""

    instance: str = "dgx1v.16g.1.norm"
    """The kind of machine."""

    image: str = ""
    """The container, with rollmill installed in it."""

    team: str | None = None
    """Team to charge."""

    workspace: str = ""
    """Workspace that is mounted as the folder of runs: NAME:PATH."""

    template: str = (
        "ngc batch run --name {name} --instance {instance} --image {image} --result /results "
        "--workspace {workspace}:RW{team} --format_type json --commandline {command}"
    )
    """The command that hands in one run. Names in braces are filled in, quoted for the shell."""

    program: str = "ngc"
    """The program that is asked for status and told to cancel."""

    def __post_init__(self) -> None:
        try:
            list(string.Formatter().parse(self.template))
            shlex.split(self.template)
        except ValueError as error:
            raise ValueError(f"template={self.template!r}: {error}") from error


@settings
class LaunchSettings:
    """Everything ``rollmill launch`` can be told besides the runs."""

    backend: BackEndName = "local"
    """Where runs are started."""

    retries: int = 2
    """How often a run that failed is started again, from its checkpoint if it has one."""

    poll_seconds: float = 0.0
    """Seconds between two looks at the runs; 0: 2 on this machine, 15 where a scheduler is asked."""

    local: LocalSettings = field(default_factory=LocalSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    ngc: NgcSettings = field(default_factory=NgcSettings)

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError("retries must not be negative")
        if self.poll_seconds < 0:
            raise ValueError("poll_seconds must not be negative")

    @property
    def at_once(self) -> int:
        """Runs at the same time, as the back end is told (``parallel`` of its settings); 0: it decides."""
        own = getattr(self, self.backend, None)
        return own.slots if isinstance(own, LocalSettings) else getattr(own, "parallel", 0)
