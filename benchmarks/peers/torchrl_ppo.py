"""TorchRL PPO on CartPole: its collector, GAE and clipped loss; 8 envs in one process, 10 epochs of 4 minibatches."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from stopwatch import Stopwatch, arguments
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENVS, BATCH, MINIBATCH, EPOCHS, LR = 8, 1024, 256, 10, 1e-3


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def make_env() -> TransformedEnv:
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.append_transform(StepCounter())
    return env


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    watch = Stopwatch(options)
    env = SerialEnv(ENVS, make_env)
    env.set_seed(options.seed)
    actor = ProbabilisticActor(
        TensorDictModule(mlp(2), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_of = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.003, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=LR)
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=-1)
    watch.step(0)
    for batch in collector:
        watch.step(BATCH)
        over = batch["next", "done"]
        for total in batch["next", "episode_reward"][over].tolist():
            watch.episode(total)
        for _ in range(EPOCHS):
            with torch.no_grad():
                advantage(batch)
            flat = batch.reshape(-1)
            for chosen in torch.randperm(BATCH).split(MINIBATCH):
                losses = loss_of(flat[chosen])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_of.parameters(), 0.5)
                optimizer.step()
        watch.update()
        if watch.over:
            break
    watch.report(version=f"torchrl {version('torchrl')}", envs=ENVS)
    collector.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
