"""How soft actor-critic learns, beyond what it shares with ``learning``."""

from __future__ import annotations

from rollmill.core.config.schema import require_least, require_positive, settings


@settings
class SacSettings:
    """Soft actor-critic (``learning.algorithm=sac``): two critics and a replay buffer."""

    minibatch: int = 256
    """Rows drawn from the replay buffer for one optimizer step."""

    updates_per_step: float = 1.0
    """Optimizer steps for every new row (update-to-data ratio); fractions add up."""

    capacity: int = 1_000_000
    """Rows of the replay buffer; the oldest give way."""

    warmup: int = 5_000
    """Rows with uniformly random actions before learning begins."""

    save_replay: bool = True
    """Keep the replay buffer in checkpoints, so that a resumed run goes on as if it had not stopped. Without it a
    checkpoint is small, and a resumed run first fills the buffer again (``warmup`` rows, with its own policy)."""

    tau: float = 0.005
    """Share by which the target networks follow the critics at every optimizer step."""

    n_step: int = 1
    """Rewards that are summed up before a target bootstraps; fewer at the end of a segment."""

    burn_in: int = 0
    """With memory: first steps of a rollout that are not learnt from, unless an episode begins there. The critics'
    memories are empty at the start of every rollout; these steps fill them."""

    temperature: float = 0.2
    """Weight of the entropy in the return: the first value, or the fixed one."""

    learn_temperature: bool = True
    """Adapt the temperature such that the policy's entropy stays near ``target_entropy``."""

    target_entropy: float | None = None
    """Entropy to keep, in nats, of actions scaled to -1..1; unset: minus the number of action components, and for
    choices half the entropy of uniform ones."""

    max_grad_norm: float = 0.0
    """Gradients of the critics, and of the policy, are scaled down to this norm; 0 is off."""

    def __post_init__(self) -> None:
        require_least(self, 1, "minibatch", "capacity", "n_step")
        require_positive(self, "updates_per_step", "temperature")
        require_least(self, 0, "warmup", "max_grad_norm", "burn_in")
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau must lie above 0 and up to 1, not {self.tau:g}")
        if self.minibatch > self.capacity:
            raise ValueError(f"minibatch={self.minibatch} is more than capacity={self.capacity} rows")
        if self.warmup > self.capacity:
            raise ValueError(f"warmup={self.warmup} rows do not fit into capacity={self.capacity}")
