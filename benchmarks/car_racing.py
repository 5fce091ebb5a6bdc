"""Our CarRacing against Gymnasium's and EnvPool's: steps per CPU second, rewards, pictures.

    python benchmarks/car_racing.py                     50 tracks, about 5 minutes
    python benchmarks/car_racing.py --tracks 5 --repeats 1

- **Speed**: whole episodes of up to 1000 steps, resets included, in one process with one thread; the actions are those
  of a scripted driver that knows the track. One episode before is not counted (the digits of every score are rendered
  once in a process). Everybody in turn, ``--repeats`` times; CPU time, so that other load on
  the machine counts little. The ratio is taken within each turn, and its median is printed.
- **Rewards**: the same seeds and actions for stock and ours, whole episodes, by the driver, at random, and at random
  with discrete actions. Reward, terminated and truncated of every step must be equal; the stock class is not asked to
  draw here, which changes nothing else.
- **Pictures**: on ``--tracks`` tracks, every 10th step of the opening zoom and every 50th step after it: mean absolute
  difference per pixel and channel, of 255 levels. For 64 x 64 the stock window is shrunk to 64 x 64 by the same
  function that shrinks it to 96 x 96. Each picture must stay under 1.0.
- **EnvPool**: also the return of the same actions from the same seed, which shows that its tracks are others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import numpy as np
from common import ROOT, load_text, median_text, record, with_load
from gymnasium.envs.box2d import car_racing as stock

from rollmill.envs.car_racing.env import CarRacingEnv

STEPS = 1000
SIZES = (96, 64)
BOUND = 1.0
"""Levels that the mean difference of every picture must stay under."""
OPENING = 50
"""Steps until the zoom is complete."""


class Undrawn(stock.CarRacing):
    """The stock environment, drawing only when asked."""

    def _render(self, mode: str) -> Any:
        self.shown = self.reward  # a step draws before it counts its own cost
        return None

    def images(self) -> dict[int, Any]:
        """The stock observation by size."""
        now, self.reward = self.reward, self.shown
        super()._render("state_pixels")
        self.reward = now
        return {size: self._create_image_array(self.surf, (size, size)) for size in SIZES}


class Ours:
    """Our environment with its observation, as the others are called."""

    def __init__(self, size: int, **options: Any) -> None:
        self.env = CarRacingEnv(size=size, **options)
        self.obs = {"obs": np.zeros((1, size, size, 3), np.uint8)}

    def reset(self, seed: int) -> None:
        self.env.reset(seed, self.obs)

    def step(self, action: Any) -> tuple[float, bool, bool]:
        reward, terminated, truncated, _ = self.env.step(np.asarray(action)[None], self.obs)
        return reward, terminated, truncated


def drive(env: stock.CarRacing, speed: float = 45.0) -> Any:
    """What somebody does who knows the track: aim at a tile ahead, keep a speed."""
    x, y = env.car.hull.position
    track = np.array(env.track)[:, 2:4]
    ahead = track[(np.argmin(((track - (x, y)) ** 2).sum(axis=1)) + 5) % len(track)] - (x, y)
    turn = np.arctan2(-ahead[0], ahead[1]) - env.car.hull.angle
    turn = (turn + np.pi) % (2 * np.pi) - np.pi
    now = np.hypot(*env.car.hull.linearVelocity)
    return np.array(
        [np.clip(-1.5 * turn, -1, 1), 0.3 if now < speed else 0.0, 0.2 if now > speed + 15 else 0.0], np.float32
    )


def wander(rng: np.random.Generator) -> Any:
    return rng.uniform((-1, 0, 0), (1, 1, 0.3)).astype(np.float32)


def episode(kind: str, seed: int) -> Iterator[tuple[Undrawn, Any, tuple[float, bool, bool] | None]]:
    """Play the stock environment: itself, the action, and what came of it; first without action, after the reset."""
    env = Undrawn(continuous=kind != "discrete")
    env.reset(seed=seed)
    yield env, None, None
    rng = np.random.default_rng(seed)
    for step in range(1, STEPS + 1):
        action = {"driver": lambda: drive(env), "random": lambda: wander(rng), "discrete": lambda: rng.integers(5)}[
            kind
        ]()
        _, reward, terminated, _, _ = env.step(action)
        yield env, action, (reward, terminated, step == STEPS)  # as TimeLimit truncates
        if terminated:
            return


def compare_rewards(kind: str, seeds: range) -> dict[str, Any]:
    """Play the same episodes with ours; how many steps there were and how many differ."""
    ours = Ours(64, continuous=kind != "discrete")
    steps = differ = 0
    returns, ends = [], {"terminated": 0, "truncated": 0}
    for seed in seeds:
        total = 0.0
        for _, action, outcome in episode(kind, seed):
            if outcome is None:
                ours.reset(seed)
                continue
            answer = ours.step(action)
            steps += 1
            differ += answer != outcome
            total += outcome[0]
            ends["terminated"] += outcome[1]
            ends["truncated"] += outcome[2]
        returns.append(total)
    return {"episodes": len(seeds), "steps": steps, "steps_that_differ": differ, "returns": returns, **ends}


def compare_images(seeds: range, steps: int) -> dict[str, Any]:
    """Mean absolute difference of each compared picture, by size and phase."""
    ours = {size: Ours(size) for size in SIZES}
    found: dict[str, list[float]] = {f"{size} {phase}": [] for size in SIZES for phase in ("opening", "driving")}
    for seed in seeds:
        kind = "driver" if seed % 3 else "random"  # which leaves the road
        for step, (env, action, outcome) in enumerate(episode(kind, seed)):
            for one in ours.values():
                if outcome is None:
                    one.reset(seed)
                else:
                    one.step(action)
            if step % (10 if step < OPENING else 50) == 0:
                for size, image in env.images().items():
                    difference = np.abs(image.astype(np.int16) - ours[size].obs["obs"][0]).mean()
                    found[f"{size} {'opening' if step < OPENING else 'driving'}"].append(float(difference))
            if step == steps or (outcome and outcome[1]):
                break
    return found


def spend(env: Any, seed: int, actions: list[Any]) -> dict[str, Any]:
    """CPU seconds of one episode."""
    begun = time.process_time()
    env.reset(seed)
    total = 0.0
    for action in actions:
        reward, terminated, _ = env.step(action)
        total += reward
        if terminated:
            break
    seconds = time.process_time() - begun
    return {"steps_per_cpu_s": len(actions) / seconds, "return": total}


class Stock:
    """The stock environment as it is."""

    def __init__(self) -> None:
        self.env = stock.CarRacing()

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)

    def step(self, action: Any) -> tuple[float, bool, bool]:
        return self.env.step(action)[1:4]


class Pool:
    """EnvPool with eight environments and one thread; each action is for all of them and counts eight steps."""

    ENVS = 8

    def reset(self, seed: int) -> None:
        import envpool

        # It is seeded when it is made; its own autoreset goes on where an episode ends early.
        self.env = envpool.make("CarRacing-v3", env_type="gymnasium", num_envs=self.ENVS, num_threads=1, seed=seed)
        self.env.reset()
        self.ended = False

    def step(self, action: Any) -> tuple[float, bool, bool]:
        _, reward, terminated, _, _ = self.env.step(np.tile(action, (self.ENVS, 1)))
        reward = 0.0 if self.ended else float(reward[0])
        self.ended |= bool(terminated[0])
        return reward, False, False


def measure_speed(repeats: int) -> dict[str, list[dict[str, Any]]]:
    contenders: dict[str, Any] = {"stock": Stock(), **{f"ours {size}": Ours(size) for size in SIZES}}
    try:
        import envpool  # noqa: F401

        contenders["envpool"] = Pool()
    except ImportError as error:
        print(f"EnvPool is left out: {error}", file=sys.stderr)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for seed in range(-1, repeats):
        actions = [action for _, action, outcome in episode("driver", abs(seed)) if outcome]
        for name, env in contenders.items():
            if seed < 0:  # to warm up
                if name != "stock":
                    spend(env, abs(seed), actions)
                continue
            run = with_load(lambda env=env, seed=seed, actions=actions: spend(env, seed, actions))
            run["steps_per_cpu_s"] *= getattr(env, "ENVS", 1)
            runs[name].append({"steps": len(actions), **run})
            print(name, {key: round(value, 1) for key, value in runs[name][-1].items()}, file=sys.stderr, flush=True)
    return runs


def print_speed(runs: dict[str, list[dict[str, Any]]]) -> None:
    base = [run["steps_per_cpu_s"] for run in runs["stock"]]
    print("| | steps per CPU second, median (range) | times stock | returns |\n|---|---|---|---|")
    for name, mine in runs.items():
        rates = [run["steps_per_cpu_s"] for run in mine]
        ratio = statistics.median(rate / stock for rate, stock in zip(rates, base))
        returns = ", ".join(f"{run['return']:.1f}" for run in mine)
        print(f"| {name} | {median_text(rates)} | {ratio:.1f} | {returns} |")


def print_rewards(rewards: dict[str, dict[str, Any]]) -> None:
    print("\n| actions | episodes | steps | that differ | terminated | truncated | mean return |")
    print("|---|---|---|---|---|---|---|")
    for kind, row in rewards.items():
        print(
            f"| {kind} | {row['episodes']} | {row['steps']:,} | {row['steps_that_differ']} | {row['terminated']} | "
            f"{row['truncated']} | {statistics.mean(row['returns']):.1f} |"
        )


def print_images(images: dict[str, list[float]]) -> None:
    print("\n| size, phase | pictures | mean difference | largest of a picture |\n|---|---|---|---|")
    for name, values in images.items():
        print(f"| {name} | {len(values)} | {statistics.mean(values):.2f} | {max(values):.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=50)
    parser.add_argument("--image-steps", type=int, default=300, help="steps played on each track for pictures")
    parser.add_argument("--reward-episodes", type=int, default=10, help="of each kind of actions")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    speed = measure_speed(options.repeats)
    print_speed(speed)
    rewards = {kind: compare_rewards(kind, range(options.reward_episodes)) for kind in ("driver", "random", "discrete")}
    print_rewards(rewards)
    images = compare_images(range(options.tracks), options.image_steps)
    print_images(images)
    print(load_text([{"runs": speed}]), end="")
    path: Path = record("car_racing", {"speed": speed, "rewards": rewards, "images": images})
    print(f"\nrecorded in {path.relative_to(ROOT)}")
    agree = not any(row["steps_that_differ"] for row in rewards.values())
    alike = all(max(values) < BOUND for values in images.values() if values)
    return 0 if agree and alike else 1


if __name__ == "__main__":
    sys.exit(main())
