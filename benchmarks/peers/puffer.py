"""PufferLib 3: its own trainer (``pufferlib.pufferl.PuffeRL``) on the same Gymnasium environments.

Settings are those of its ``default.ini`` where nothing else is said. With these (``default``: 64 envs, Muon) it is at
its fastest but does not solve CartPole; ``tuned`` is the best of some ten settings tried for this comparison.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gym_envs
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.pufferl
import pufferlib.vector
import torch
from stopwatch import Stopwatch, arguments

DEFAULTS: dict[str, Any] = {
    "torch_deterministic": True,
    "cpu_offload": False,
    "device": "cpu",
    "optimizer": "muon",
    "anneal_lr": True,
    "precision": "float32",
    "learning_rate": 0.015,
    "gamma": 0.995,
    "gae_lambda": 0.90,
    "update_epochs": 1,
    "clip_coef": 0.2,
    "vf_coef": 2.0,
    "vf_clip_coef": 0.2,
    "max_grad_norm": 1.5,
    "ent_coef": 0.001,
    "adam_beta1": 0.95,
    "adam_beta2": 0.999,
    "adam_eps": 1e-12,
    "checkpoint_interval": 10**9,
    "max_minibatch_size": 32768,
    "compile": False,
    "compile_mode": "max-autotune-no-cudagraphs",
    "compile_fullgraph": True,
    "vtrace_rho_clip": 1.0,
    "vtrace_c_clip": 1.0,
    "prio_alpha": 0.8,
    "prio_beta0": 0.2,
    "use_rnn": False,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"envs": 64, "bptt_horizon": 64, "minibatch_size": 4096, "total_timesteps": 500_000},
    "tuned": {
        "envs": 16,
        "bptt_horizon": 32,
        "minibatch_size": 256,
        "update_epochs": 4,
        "optimizer": "adam",
        "learning_rate": 4e-3,
        "adam_beta1": 0.9,
        "adam_eps": 1e-5,
        "gamma": 0.98,
        "gae_lambda": 0.95,
        "vf_coef": 0.5,
        "vf_clip_coef": 1e9,
        "max_grad_norm": 0.5,
        "total_timesteps": 200_000,
    },
    "pong": {
        "envs": 8,
        "bptt_horizon": 128,
        "minibatch_size": 256,
        "update_epochs": 4,
        "optimizer": "adam",
        "learning_rate": 2.5e-4,
        "adam_beta1": 0.9,
        "adam_eps": 1e-5,
        "total_timesteps": 10_000_000,
    },
}


class NatureCnn(pufferlib.models.Convolutional):
    """Its Nature CNN; 3.0.0 calls ``forward_eval``, which that class lacks."""

    def forward_eval(self, observations: Any, state: Any = None) -> Any:
        return self.forward(observations, state)


def make_envs(task: str, count: int, backend: str) -> Any:
    def make(buf: Any = None, seed: int = 0) -> Any:
        env = pufferlib.EpisodeStats(gym_envs.make(task))
        return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

    if backend == "serial":
        return pufferlib.vector.make(make, backend="Serial", num_envs=count)
    return pufferlib.vector.make(make, backend="Multiprocessing", num_envs=count, num_workers=2, overwork=True)


class Counted(pufferlib.pufferl.PuffeRL):
    """The trainer without its dashboard."""

    def print_dashboard(self, *_args: Any, **_kwargs: Any) -> None:
        return


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--settings", choices=list(SETTINGS), required=True)
    parser.add_argument("--backend", choices=["serial", "multiprocessing"], default="serial")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of its trainer")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1 if options.task == "cartpole" else 2)
    settings = {**DEFAULTS, **SETTINGS[options.settings], "seed": options.seed, "env": options.task}
    settings |= {key: ast.literal_eval(value) for key, value in (word.split("=", 1) for word in options.set)}
    count = settings.pop("envs")
    settings |= {"batch_size": count * settings["bptt_horizon"], "data_dir": tempfile.mkdtemp(prefix="bench-puffer-")}
    watch = Stopwatch(options)
    envs = make_envs(options.task, count, options.backend)
    if options.task == "cartpole":
        policy = pufferlib.models.Default(envs.driver_env, hidden_size=64)
    else:
        policy = NatureCnn(envs.driver_env, framestack=4, flat_size=64 * 7 * 7)
    train(Counted(settings, envs, policy), watch)
    watch.report(version=f"pufferlib {version('pufferlib')}", envs=count)
    os._exit(0)  # its threads and workers do not end by themselves


def train(trainer: Any, watch: Stopwatch) -> None:
    """Its own loop (``pufferl.train``), with the stopwatch."""
    seen = 0
    watch.step(0)
    while not watch.over:
        stats = trainer.evaluate()
        watch.step(trainer.global_step - seen)
        seen = trainer.global_step
        for total in stats["episode_return"]:
            watch.episode(total)
        stats.clear()
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
        watch.update()


if __name__ == "__main__":
    sys.exit(main())
