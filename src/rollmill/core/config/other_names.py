"""What other tools call our settings: for the "did you mean" of an unknown key, and for nothing else.

The pages ``docs/from_*.md`` are the longer lists, with what differs in meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "total_timesteps": ("stop.frames", "fit.steps"),
    "timesteps": ("stop.frames", "fit.steps"),
    "max_steps": ("stop.frames", "fit.steps"),
    "train_for_env_steps": ("stop.frames",),
    "train_for_seconds": ("stop.seconds",),
    "env_id": ("env",),
    "env_name": ("env",),
    "n_envs": ("envs_per_worker",),
    "num_envs": ("envs_per_worker",),
    "num_envs_per_worker": ("envs_per_worker",),
    "num_workers": ("sampling.workers", "data.workers"),
    "n_workers": ("sampling.workers", "data.workers"),
    "num_steps": ("sampling.rollout",),
    "n_steps": ("sampling.rollout",),
    "rollout_length": ("sampling.rollout",),
    "num_minibatches": ("learning.minibatches",),
    "minibatch_size": ("learning.minibatches", "sac.minibatch"),
    "n_epochs": ("learning.epochs",),
    "num_epochs": ("learning.epochs",),
    "update_epochs": ("learning.epochs",),
    "ent_coef": ("entropy_coefficient",),
    "entropy_coef": ("entropy_coefficient",),
    "exploration_loss_coeff": ("entropy_coefficient",),
    "vf_coef": ("value_coefficient",),
    "value_loss_coeff": ("value_coefficient",),
    "clip_coef": ("learning.clip",),
    "clip_range": ("learning.clip",),
    "clip_ratio": ("learning.clip",),
    "ppo_clip_ratio": ("learning.clip",),
    "clip_range_vf": ("learning.value_clip",),
    "lambda": ("learning.gae_lambda",),
    "discount": ("learning.gamma", "value.gamma"),
    "norm_adv": ("normalize_advantages",),
    "normalize_advantage": ("normalize_advantages",),
    "grad_clip": ("learning.max_grad_norm", "fit.max_grad_norm"),
    "anneal_lr": ("lr_schedule",),
    "with_vtrace": ("learning.targets",),
    "buffer_size": ("sac.capacity", "replay.capacity"),
    "replay_buffer_capacity": ("replay.capacity",),
    "preload_ratio": ("replay.preload",),
    "production_consume_ratio": ("replay.samples_per_insert",),
    "train_batch_size": ("learning.batch_size",),
    "learning_starts": ("sac.warmup",),
    "use_rnn": ("model.memory",),
    "rnn_type": ("model.memory",),
    "use_prev_action": ("env.previous_action",),
    "prev_action": ("env.previous_action",),
    "lstm_use_prev_action": ("env.previous_action",),
    "lstm_use_prev_reward": ("env.previous_reward",),
    "prev_reward": ("env.previous_reward",),
    "rnn_size": ("model.hidden_size",),
    "net_arch": ("model.mlp",),
    "hidden_sizes": ("model.mlp",),
    "policy_kwargs": ("model.mlp",),
    "exp_name": ("run.name",),
    "train_dir": ("run.dir",),
    "log_dir": ("run.dir",),
    "n_eval_episodes": ("evaluation.episodes",),
    "eval_freq": ("evaluation.every_frames", "evaluation.every_steps"),
    "context_length": ("model.context",),
    "n_heads": ("model.heads",),
    "n_layers": ("model.layers", "model.memory_layers"),
}
"""Name elsewhere -> ours, or the end of it; those that a command does not have are passed over."""


def keys_called(word: str, known: Iterable[str]) -> list[str]:
    """Return those of the known dotted keys that other tools call ``word``."""
    ends = OTHER_NAMES.get(word.lower().replace("-", "_"), ())
    return [key for key in known if any(key == end or key.endswith(f".{end}") for end in ends)]
