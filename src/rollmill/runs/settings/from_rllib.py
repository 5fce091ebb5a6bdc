"""An RLlib YAML file in our words: what corresponds is translated, and what does not is listed with the reason.

``docs/from_rllib.md`` is the same table for readers; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.core.config.yaml import parse_value, read_mapping, to_yaml
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.runs.settings.train import TrainConfig, check

Settings = dict[str, Any]
"""Ours, by dotted key."""

ALGORITHMS: dict[str, Settings] = {
    "PPO": {"sampling.mode": "sync"},
    "APPO": {"learning.targets": "vtrace"},
    "IMPALA": {"learning.targets": "vtrace"},
    "SAC": {"learning.algorithm": "sac", "model.action_distribution": "tanh_gaussian", "model.log_std": "state"},
}

NAMES: dict[str, str] = {
    "env": "env.id",
    "env_config": "env.args",
    "seed": "run.seed",
    "local_dir": "run.dir",
    "storage_path": "run.dir",
    "gamma": "learning.gamma",
    "lr": "learning.learning_rate",
    "train_batch_size": "learning.batch_size",
    "train_batch_size_per_learner": "learning.batch_size",
    "total_train_batch_size": "learning.batch_size",
    "num_epochs": "learning.epochs",
    "num_sgd_iter": "learning.epochs",
    "lambda": "learning.gae_lambda",
    "lambda_": "learning.gae_lambda",
    "vtrace_clip_rho_threshold": "learning.rho_bar",
    "clip_param": "learning.clip",
    "vf_loss_coeff": "learning.value_coefficient",
    "entropy_coeff": "learning.entropy_coefficient",
    "kl_target": "learning.target_kl",
    "grad_clip": "learning.max_grad_norm",
    "epsilon": "learning.adam_eps",
    "num_learners": "learning.ranks",
    "rollout_fragment_length": "sampling.rollout",
    "num_envs_per_env_runner": "sampling.envs_per_worker",
    "num_envs_per_worker": "sampling.envs_per_worker",
    "sample_timeout_s": "sampling.step_timeout",
    "horizon": "env.max_episode_steps",
    "max_episode_steps": "env.max_episode_steps",
    "stop.timesteps_total": "stop.frames",
    "stop.num_env_steps_sampled_lifetime": "stop.frames",
    "stop.training_iteration": "stop.batches",
    "stop.episode_reward_mean": "stop.mean_return",
    "stop.env_runners/episode_return_mean": "stop.mean_return",
    "stop.time_total_s": "stop.seconds",
    "checkpoint_freq": "checkpoints.every_updates",
    "checkpoint_frequency": "checkpoints.every_updates",
    "keep_checkpoints_num": "checkpoints.keep_last",
    "num_to_keep": "checkpoints.keep_last",
    "evaluation_duration": "evaluation.episodes",
    "evaluation_num_episodes": "evaluation.episodes",
    "replay_buffer_config.capacity": "sac.capacity",
    "num_steps_sampled_before_learning_starts": "sac.warmup",
    "training_intensity": "sac.updates_per_step",
    "tau": "sac.tau",
    "n_step": "sac.n_step",
    "initial_alpha": "sac.temperature",
    "target_entropy": "sac.target_entropy",
    "optimization.actor_learning_rate": "learning.learning_rate",
    "actor_lr": "learning.learning_rate",
    "model.fcnet_hiddens": "model.mlp",
    "model.fcnet_activation": "model.nonlinearity",
    "model.post_fcnet_hiddens": "model.fc",
    "model.lstm_cell_size": "model.hidden_size",
    "model.max_seq_len": "learning.recurrence",
    "model.lstm_use_prev_action": "env.previous_action",
    "model.lstm_use_prev_reward": "env.previous_reward",
    "model.custom_model_config": "model.custom_args",
    "metrics_num_episodes_for_smoothing": "report.window",
}
"""What is called otherwise and means the same."""

CHANGED: dict[str, Callable[[Any], Settings]] = {
    "num_env_runners": lambda n: {"sampling.workers": n} if n else {"sampling.mode": "serial", "sampling.workers": 1},
    "clip_rewards": lambda on: {"learning.reward_clip": float(on)} if on else {},
    "observation_filter": lambda name: {"model.normalize_observations": name == "MeanStdFilter"},
    "vtrace": lambda on: {"learning.targets": "vtrace" if on else "gae"},
    "use_gae": lambda on: {"learning.targets": "gae"} if on else {},
    "num_gpus": lambda n: {"learning.device": "cuda" if n else "cpu"},
    "num_gpus_per_learner": lambda n: {"learning.device": "cuda" if n else "cpu"},
    "evaluation_config.explore": lambda on: {"evaluation.deterministic": not on},
    "model.use_lstm": lambda on: {"model.memory": "lstm"} if on else {},
    "model.vf_share_layers": lambda on: {} if on else {"model.separate_critic": True},
    "model.free_log_std": lambda on: {"model.log_std": "free" if on else "state"},
}
CHANGED |= dict.fromkeys(("num_workers", "num_rollout_workers"), CHANGED["num_env_runners"])

WITHOUT: dict[str, str] = {
    "framework": "PyTorch only",
    "checkpoint_at_end": "a checkpoint is always written at the end",
    "checkpoint_score_attribute": "give the metric as it is called here: checkpoints.best_metric",
    "checkpoint_score_attr": "give the metric as it is called here: checkpoints.best_metric",
    "num_samples": "`seeds` of a launch description (docs/launch.md): every one is seeded",
    "max_failures": "`retries` of rollmill launch run",
    "restore": "`--restore` of rollmill train",
    "lr_schedule": "points of time cannot be given; learning.lr_schedule is linear or cosine over the whole run",
    "entropy_coeff_schedule": "a straight line only: learning.entropy_end",
    "vtrace_clip_pg_rho_threshold": "learning.rho_bar is one bound for both",
    "vf_clip_param": "in other units here: learning.value_clip counts in deviations of the returns",
    "use_kl_loss": "there is no such term; learning.target_kl ends the epochs of a batch early",
    "kl_coeff": "there is no such term; learning.target_kl ends the epochs of a batch early",
    "batch_mode": "segments are always cut at the rollout; episodes go on in the next one",
    "shuffle_batch_per_epoch": "always",
    "shuffle_sequences": "always",
    "opt_type": "always Adam",
    "decay": "always Adam",
    "momentum": "always Adam",
    "broadcast_interval": "new weights act at once",
    "compress_observations": "observations stay in shared memory",
    "remote_worker_envs": "workers are processes already",
    "target_network_update_freq": "no target network: V-trace corrects for the age of the experience",
    "explore": "a training always explores; rollmill eval has --deterministic",
    "render_env": "rollmill watch",
    "callbacks": "an observer: observers.use",
    "multiagent": "env.policies: the policy of each agent by number",
    "torch_compile_learner": "not needed: on a GPU CUDA graphs are used",
    "evaluation_interval": "evaluation.every_frames counts frames, not iterations",
    "evaluation_num_env_runners": "one process of its own plays beside the training",
    "evaluation_num_workers": "one process of its own plays beside the training",
    "evaluation_parallel_to_training": "always",
    "num_cpus_per_env_runner": "a run divides the cores of its machine by itself; ray.cpus counts a whole run",
    "num_cpus_per_worker": "a run divides the cores of its machine by itself; ray.cpus counts a whole run",
    "num_gpus_per_worker": "workers only simulate; the inference thread shares the learner's GPU",
    "optimization.critic_learning_rate": "one rate for all: learning.learning_rate",
    "optimization.entropy_learning_rate": "one rate for all: learning.learning_rate",
    "critic_lr": "one rate for all: learning.learning_rate",
    "alpha_lr": "one rate for all: learning.learning_rate",
    "model.conv_filters": "five convnets by name: model.encoder; another one is a class of your own (model.custom)",
    "model.use_attention": "not there for training; a Decision Transformer learns from recordings",
    "model.custom_model": "name a class: model.custom=module:Class; nothing is registered",
    "output": "recording.keep=all",
    "input": "rollmill offline STORE",
    "input_": "rollmill offline STORE",
}
"""What has no equivalent that a translation could write down, and what to do instead."""

BLOCKS = ("model", "replay_buffer_config", "optimization", "evaluation_config")
"""Mappings within ``config`` whose keys are looked up with the block's name before them."""


@dataclass
class Translated:
    """One experiment."""

    name: str
    settings: Settings = field(default_factory=dict)
    """By dotted key."""
    left_out: dict[str, str] = field(default_factory=dict)
    """RLlib's key, and why it is not among them."""

    @property
    def tree(self) -> dict[str, Any]:
        """As in a settings file."""
        tree: dict[str, Any] = {}
        for key, value in self.settings.items():
            block, _, rest = key.partition(".")
            tree.setdefault(block, {})[rest] = value
        return tree

    @property
    def yaml(self) -> str:
        return to_yaml(self.tree)


def translate(file: Path) -> list[Translated]:
    """Translate the experiments of an RLlib YAML file. Raises ConfigError if it is none."""
    content = read_mapping(file).data
    if "env" in content or "config" in content:
        content = {file.stem: content}
    if not content:
        raise ConfigError(
            f"{file}: is empty; expected an experiment of RLlib: NAME: {{env: ..., run: PPO, config: ...}}"
        )
    found = []
    for name, block in content.items():
        if not isinstance(block, Mapping) or not {"env", "config", "run"} & set(block):
            raise ConfigError(f"{file}: {name} is no experiment of RLlib: it has neither env, run nor config")
        found.append(_experiment(str(name), block))
    return found


def _experiment(name: str, block: Mapping[str, Any]) -> Translated:
    made = Translated(name, {"run.name": name})
    algorithm = block.get("run", "PPO")
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"{name}: run: {algorithm} is not there; {', '.join(ALGORITHMS)} can be translated")
    made.settings |= ALGORITHMS[algorithm]
    outside = {key: value for key, value in block.items() if key not in ("run", "config", "stop")}
    stop = {f"stop.{key}": value for key, value in (block.get("stop") or {}).items()}
    inside = dict(block.get("config") or {})
    for part in BLOCKS:
        inside |= {f"{part}.{key}": value for key, value in (inside.pop(part, None) or {}).items()}
    given = {**outside, **stop, **inside}
    for key, value in given.items():
        _take(made, key, value)
    _minibatches(made, given)
    if "model.max_seq_len" in given and "model.memory" not in made.settings:
        made.settings.pop("learning.recurrence", None)
        made.left_out["model.max_seq_len"] = "there is no memory (use_lstm)"
    if "sampling.envs_per_worker" in made.settings and algorithm != "SAC":
        made.settings.setdefault("sampling.groups", 2 if made.settings["sampling.envs_per_worker"] % 2 == 0 else 1)
    return made


def _take(made: Translated, key: str, value: Any) -> None:
    """Translate one key, by whichever table knows it."""
    if isinstance(value, Mapping) and "grid_search" in value:
        made.left_out[key] = "`grid` of a launch description (docs/launch.md) tries several values"
    elif isinstance(value, str) and value.startswith("tune."):
        made.left_out[key] = "`random` of a launch description (docs/launch.md) draws values"
    elif isinstance(value, list) and key in ("lr", "entropy_coeff"):
        made.left_out[key] = WITHOUT["lr_schedule" if key == "lr" else "entropy_coeff_schedule"]
    elif key in CHANGED:
        made.settings |= CHANGED[key](value)
    elif key in NAMES:
        if value is not None:
            made.settings[NAMES[key]] = _number(value)
    elif key not in ("minibatch_size", "sgd_minibatch_size"):
        made.left_out[key] = WITHOUT.get(key, "not known here")


def _number(value: Any) -> Any:
    """Return a number that YAML has read as text: ``1e-4``."""
    try:
        return parse_value(value, "") if isinstance(value, str) else value
    except ConfigError:
        return value


def _minibatches(made: Translated, given: Mapping[str, Any]) -> None:
    """Translate RLlib's rows of a minibatch into the number of minibatches that is set here.

    SAC's are rows of the replay buffer.
    """
    rows = given.get("minibatch_size", given.get("sgd_minibatch_size"))
    batch = made.settings.get("learning.batch_size")
    if made.settings.get("learning.algorithm") == "sac":
        if batch is not None:
            made.settings["sac.minibatch"] = made.settings.pop("learning.batch_size")
        return
    if rows is None:
        return
    if not isinstance(rows, int) or not isinstance(batch, int):
        made.left_out["minibatch_size"] = "learning.minibatches is their number: give train_batch_size, too"
        return
    made.settings["learning.minibatches"] = max(1, batch // rows)
    if batch % rows:
        made.left_out["minibatch_size"] = (
            f"{batch} rows are {batch // rows} minibatches here, none of {rows} rows exactly"
        )


def problem_of(made: Translated) -> str:
    """Return what ``rollmill train`` would refuse of the translation; empty where it would begin."""
    try:
        check(load_config(TrainConfig, [], [], base=made.tree))
    except (ConfigError, MissingExtraError) as error:
        return str(error)
    return ""
