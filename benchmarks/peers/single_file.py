"""PPO in one file, in the manner of CleanRL (one plain loop, one vector env, separate or shared networks).

Written for this comparison; hyperparameters are the usual ones of that style: CartPole 4 envs x 128 steps, lr 2.5e-4
annealed over 500,000 steps; Pong 8 envs x 128 steps, 4 epochs of 4 minibatches, Nature CNN.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gym_envs
import gymnasium as gym
import numpy as np
import torch
from stopwatch import Stopwatch, arguments
from torch import Tensor, nn
from torch.distributions import Categorical

GAMMA, LAMBDA, LR, EPOCHS, MINIBATCHES, HORIZON = 0.99, 0.95, 2.5e-4, 4, 4, 128
ENTROPY, VALUE, MAX_NORM = 0.01, 0.5, 0.5
ANNEAL_STEPS = {"cartpole": 500_000, "pong": 10_000_000}
CLIP = {"cartpole": 0.2, "pong": 0.1}


def layer(module: nn.Linear | nn.Conv2d, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(module.weight, gain)
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    return module


def mlp(inputs: int, outputs: int, gain: float) -> nn.Module:
    hidden = [layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()]
    return nn.Sequential(*hidden, layer(nn.Linear(64, outputs), gain))


class VectorAgent(nn.Module):
    """Two MLPs of 64 x 64, one for the policy and one for the value."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = mlp(inputs, actions, 0.01), mlp(inputs, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs).flatten()


class ImageAgent(nn.Module):
    """The Nature CNN with two heads, for stacks of four 84x84 frames."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        convolutions = [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
        layers = [part for c in convolutions for part in (layer(nn.Conv2d(*c)), nn.ReLU())]
        self.body = nn.Sequential(*layers, nn.Flatten(), layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU())
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs.float() / 255)
        return self.actor(features), self.critic(features).flatten()


class Returns:
    """Sums up rewards per env and tells the stopwatch about finished episodes."""

    def __init__(self, envs: int, watch: Stopwatch) -> None:
        self._sums, self._watch = np.zeros(envs), watch

    def add(self, rewards: np.ndarray, over: np.ndarray) -> None:
        self._sums += rewards
        for i in np.nonzero(over)[0]:
            self._watch.episode(self._sums[i])
            self._sums[i] = 0


def make_envs(task: str, backend: str, seed: int) -> tuple[Any, int, str]:
    """A vector env, how many envs it has, and what made it."""
    if task == "cartpole":
        makers = [functools.partial(gym_envs.make, task)] * 4
        same_step = gym.vector.AutoresetMode.SAME_STEP
        return gym.vector.SyncVectorEnv(makers, autoreset_mode=same_step), 4, f"gymnasium {version('gymnasium')}"
    if backend == "envpool":
        import envpool

        return envpool.make_gymnasium("Pong-v5", num_envs=8, seed=seed), 8, f"envpool {version('envpool')}"
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("pong", num_envs=8, repeat_action_probability=0.0), 8, f"ale-py {version('ale-py')}"


@dataclass
class Batch:
    """One rollout, ``[HORIZON, envs, ...]`` per field."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    over: Tensor
    values: Tensor

    @classmethod
    def empty(cls, envs: int, shape: tuple[int, ...], image: bool) -> Batch:
        size = (HORIZON, envs)
        return cls(
            torch.zeros(*size, *shape, dtype=torch.uint8 if image else torch.float32),
            torch.zeros(size, dtype=torch.long),
            *(torch.zeros(size) for _ in range(4)),
        )


class Training:
    """The loop: collect a rollout, compute advantages, run the epochs."""

    def __init__(self, options: Any) -> None:
        self.watch = Stopwatch(options)
        self.task = options.task
        image = self.task == "pong"
        self.envs, self.count, self.version = make_envs(self.task, options.backend, options.seed)
        obs, _ = self.envs.reset(seed=options.seed) if options.backend != "envpool" else self.envs.reset()
        self.obs = torch.as_tensor(obs)
        self.agent = ImageAgent(6) if image else VectorAgent(4, 2)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=LR, eps=1e-5)
        self.batch = Batch.empty(self.count, tuple(self.obs.shape[1:]), image)
        self.returns = Returns(self.count, self.watch)
        self.steps = 0

    def run(self) -> None:
        while not self.watch.over:
            left = max(0.0, 1 - self.steps / ANNEAL_STEPS[self.task])
            self.optimizer.param_groups[0]["lr"] = LR * left
            self.collect()
            self.learn()
            self.watch.update()

    @torch.no_grad()
    def collect(self) -> None:
        b = self.batch
        for t in range(HORIZON):
            logits, value = self.agent(self.obs)
            choice = Categorical(logits=logits)
            action = choice.sample()
            b.obs[t], b.actions[t], b.values[t] = self.obs, action, value
            b.log_probs[t] = choice.log_prob(action)
            self.watch.step(self.count)
            obs, rewards, terminated, truncated, _ = self.envs.step(action.numpy())
            over = terminated | truncated
            self.returns.add(rewards, over)
            self.obs = torch.as_tensor(obs)
            b.rewards[t], b.over[t] = torch.as_tensor(rewards), torch.as_tensor(over)
        self.steps += HORIZON * self.count

    @torch.no_grad()
    def advantages(self) -> Tensor:
        b = self.batch
        result = torch.zeros_like(b.rewards)
        next_value, trace = self.agent(self.obs)[1], torch.zeros(self.count)
        for t in reversed(range(HORIZON)):
            goes_on = 1 - b.over[t]
            error = b.rewards[t] + GAMMA * goes_on * next_value - b.values[t]
            trace = error + GAMMA * LAMBDA * goes_on * trace
            result[t], next_value = trace, b.values[t]
        return result

    def learn(self) -> None:
        advantages = self.advantages()
        b = self.batch
        rows = HORIZON * self.count
        columns = (b.obs, b.actions, b.log_probs, b.values, advantages, advantages + b.values)
        flat = [x.reshape(rows, *x.shape[2:]) for x in columns]
        for _ in range(EPOCHS):
            for chosen in torch.randperm(rows).chunk(MINIBATCHES):
                self.minibatch(x[chosen] for x in flat)

    def minibatch(self, columns: Iterable[Tensor]) -> None:
        obs, actions, old, old_values, advantages, targets = columns
        logits, values = self.agent(obs)
        choice = Categorical(logits=logits)
        ratio = (choice.log_prob(actions) - old).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clip = CLIP[self.task]
        policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
        near = old_values + (values - old_values).clamp(-clip, clip)
        value_loss = 0.5 * torch.max((values - targets) ** 2, (near - targets) ** 2).mean()
        loss = policy_loss - ENTROPY * choice.entropy().mean() + VALUE * value_loss
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_NORM)
        self.optimizer.step()


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--backend", choices=["gymnasium", "envpool", "ale"], default="gymnasium")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1 if options.task == "cartpole" else 2)
    training = Training(options)
    training.run()
    training.watch.report(version=f"torch {version('torch')}, {training.version}", envs=training.count)
    training.envs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
