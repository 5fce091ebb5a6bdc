"""How the policy is improved."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rollmill.core.config.schema import require_least, require_positive, settings
from rollmill.core.imports import check_custom

MOST_THREADS = 1024
IN_STEP = ("clip", "value_clip", "value_coefficient", "gamma", "gae_lambda", "rho_bar", "c_bar", "max_grad_norm")
"""Numbers that an optimizer step reads, and that may change in a run."""
WHOLE = ("epochs",)
LIVE = (*IN_STEP, *WHOLE, "learning_rate", "entropy_coefficient", "reward_scale", "reward_clip", "target_kl")
"""All numbers that may change in a run (``learning.knobs``)."""
SWITCHES = ("value_clip", "max_grad_norm", "reward_clip", "target_kl")
"""Of these 0 means off, which is no number to begin from or to arrive at."""


@settings
class LearningSettings:
    """Asynchronous PPO: clipped policy updates with GAE or V-trace targets. Or SAC, which reads a few of these keys."""

    algorithm: Literal["appo", "sac"] = "appo"
    """appo: any actions and networks; sac: continuous actions, from a replay buffer (see the block ``sac``)."""

    custom: str | None = None
    """A learner of your own instead: ``module:Class`` or ``path/to/file.py:Class`` (code that is imported and run), a
    subclass of ``rollmill.CustomLearner``."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the constructor of ``custom``."""

    eager: bool = False
    """On a GPU: run every operation by itself instead of replaying CUDA graphs. Slower; for breakpoints and print in
    networks and losses, and to find where a NaN begins while it happens."""

    device: str = "auto"
    """``auto`` (a GPU when there is one), ``cpu``, ``cuda`` or ``cuda:N``."""

    threads: int = 0
    """Threads that learn on a CPU: each takes a micro-batch at a time. More than 1 uses cores that acting and
    simulators leave idle; sums then differ in their last digits from run to run. Serial mode always has one.
    0: automatic, one per core where minibatches are large enough."""

    ranks: int = 1
    """Processes that learn together, each with its share of the workers and of every batch. With ``auto`` or ``cuda``
    each has a GPU of its own; with ``cuda:N`` they share that one; with ``cpu`` they use cores."""

    meet: str = ""
    """host:port of the machine that runs rank 0: there it waits for all others, which are started on other machines by
    ``rollmill join-learner``, or by ``srun``. Empty: all ranks are processes of this machine, which nobody else can
    reach. Only for networks that you trust: there is no password."""

    rank_timeout: float = 600.0
    """Seconds a rank waits for the others (while one saves a checkpoint, or an observer works) before it gives up those
    who have not come."""

    rank_silence: float = 10.0
    """Seconds without a sign of life after which a rank is given up: its machine has died, stands still, is cut off."""

    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Arithmetic of the network; weights are float32 always. bfloat16 pays on GPUs and on CPUs with bfloat16 units, and
    is slow on others. auto: bfloat16 for images where there are such units, else float32."""

    targets: Literal["gae", "vtrace"] = "gae"
    """gae: advantages from the values stored while acting; vtrace: corrected for the age of the experience."""

    gamma: float = 0.99
    """Discount per step."""

    gae_lambda: float = 0.95
    """Lambda of GAE, and of V-trace (1 is the published V-trace)."""

    rho_bar: float = 1.0
    """V-trace: bound of the importance weight in the temporal difference."""

    c_bar: float = 1.0
    """V-trace: bound of the importance weight in the trace."""

    batch_size: int = 0
    """Rows (steps times lanes) of one training batch; 0: 2048, or more where many environments are stepped at once.
    sac: new rows between two rounds of learning."""

    minibatches: int = 4
    """Optimizer steps per epoch."""

    epochs: int = 4
    """Passes over each batch. More learns faster per frame, fewer learns faster per second where training is the
    bottleneck (images on a CPU)."""

    micro_batch: int = 0
    """Rows that go through the network at once; gradients add up to the minibatch. 0: the whole minibatch. On CPUs
    some 256 rows of images stay in the cache and train up to a third faster."""

    recurrence: int = 0
    """Steps of back-propagation through time for memory networks; 0: the whole rollout."""

    learning_rate: float = 3e-4
    """Step size of Adam."""

    lr_schedule: Literal["constant", "linear", "cosine", "kl_adaptive"] = "constant"
    """How the learning rate moves over the run; kl_adaptive follows ``kl_target``."""

    lr_end: float = 0.0
    """Learning rate at the end of a linear or cosine schedule."""

    kl_target: float = 0.01
    """KL divergence per batch that kl_adaptive aims at."""

    adam_eps: float = 1e-6
    """Epsilon of Adam."""

    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 is off."""

    clip: float = 0.2
    """PPO: how far the probability ratio may move from 1."""

    value_clip: float = 0.0
    """How far a value may move from the stored one, in units of the return's deviation; 0 is off."""

    value_coefficient: float = 0.5
    """Weight of the value loss."""

    entropy_coefficient: float = 0.003
    """Weight of the exploration term."""

    entropy_end: float | None = None
    """Weight of the exploration term at the end of the run (linear); unset: constant."""

    exploration: Literal["entropy", "symmetric_kl"] = "entropy"
    """Exploration term: entropy bonus, or symmetric KL divergence to the uniform policy (discrete actions)."""

    normalize_advantages: bool = True
    """Bring advantages to mean 0 and deviation 1."""

    normalize_returns: bool = True
    """Learn values of returns scaled by their running mean and deviation (guards against value collapse)."""

    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning; reported returns are not."""

    reward_clip: float = 0.0
    """Scaled rewards are clipped to plus/minus this; 0 is off."""

    target_kl: float = 0.0
    """Stop the epochs of a batch when the policy has moved this far; 0 is off."""

    max_policy_lag: int = 20
    """Batches by which experience may be older than the learner; older segments are dropped and counted."""

    frozen: tuple[int, ...] = ()
    """Policies (numbers of ``env.policies``) that act and never learn: their weights stay those the run began with, of
    a checkpoint, for instance (``--restore``)."""

    collapse_patience: int = 200
    """Stop when the value function's errors vary more than the returns themselves for this many batches; 0 is off."""

    @property
    def machines(self) -> int:
        """How many machines learn: with ``meet`` each rank has one of its own."""
        return self.ranks if self.meet else 1

    def __post_init__(self) -> None:
        require_least(self, 1, "minibatches", "epochs", "ranks")
        require_least(self, 0, "threads", "batch_size", zero="automatic")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads={self.threads}: {MOST_THREADS} are the most; one per core is enough")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name):g}")
        require_positive(self, "learning_rate", "clip", "adam_eps", "kl_target", "rho_bar", "c_bar", "rank_timeout")
        require_least(
            self, 0, "max_grad_norm", "value_clip", "reward_clip", "target_kl", "micro_batch", "recurrence", zero="off"
        )
        if self.rank_silence < 2:
            raise ValueError("rank_silence must be at least 2: signs of life come twice a second")
        if self.max_policy_lag < 1:
            raise ValueError("max_policy_lag must be at least 1")
        check_custom(self.custom, self.custom_args)
        if self.custom is not None and (self.algorithm != "appo" or self.ranks > 1):
            raise ValueError("custom takes the place of the algorithm, in one process: leave out algorithm and ranks")
        if self.targets == "vtrace" and self.recurrence:
            raise ValueError("recurrence shorter than the rollout needs targets=gae: V-trace reads whole segments")
