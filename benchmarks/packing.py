"""How small packed segments are, and how fast packing is on one core: health gathering, treasure hunt, CartPole.

    python benchmarks/packing.py

Segments of a random policy. Rates are raw bytes over seconds of processor time, medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.slots import SegmentLayout
from rollmill.envs.batch import random_actions
from rollmill.envs.probe import build_one, close_one
from rollmill.envs.settings import EnvSettings
from rollmill.replay.packing import SegmentCodec

CASES = {"doom_health_gathering_supreme": 32, "treasure_hunt": 256, "CartPole-v1": 32}
"""Environment and steps of a segment."""
REPEATS = 50


def main() -> None:
    for name, steps in CASES.items():
        codec, segment = played(name, steps)
        packed = codec.pack(segment)
        packing, unpacking = seconds(partial(codec.pack, segment)), seconds(partial(codec.unpack, packed))
        raw = codec.raw_bytes
        print(
            f"{name}, {steps} steps: {raw:,} bytes -> {len(packed):,} ({raw / len(packed):.1f} x); "
            f"pack {raw / packing / 1e6:,.0f} MB/s ({packing * 1e6:,.0f} us), "
            f"unpack {raw / unpacking / 1e6:,.0f} MB/s ({unpacking * 1e6:,.0f} us)"
        )


def seconds(work: Callable[[], object]) -> float:
    """Of processor time, the median."""
    found = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def played(name: str, steps: int) -> tuple[SegmentCodec, dict[str, Array]]:
    """A segment of random actions, with numbers of the usual kind where a policy would have written some."""
    env = build_one(EnvSettings(id=name))
    try:
        layout = SegmentLayout(env.spec, steps, 1)
        segment: dict[str, Array] = {f.name: np.zeros((rows, *f.shape), f.dtype) for f, rows in layout.fields()}
        rng = np.random.default_rng(0)
        obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}
        env.reset(0, obs)
        for row in range(layout.rows):
            for key, array in obs.items():
                segment[f"obs:{key}"][row] = array[0]
            action = random_actions(env.spec, rng, obs, 1)
            segment["action"][row] = action[0]
            reward, terminated, truncated, _ = env.step(action, obs)
            segment["reward"][row] = np.ravel(reward)[0]
            if np.any(terminated) or np.any(truncated):
                env.reset(row, obs)
    finally:
        close_one(env)
    for key in ("value", "log_prob"):
        segment[key][:] = rng.normal(size=layout.rows)
    segment["version"][:] = 1_000 + np.arange(layout.rows) // 8
    segment["frames"][:] = 10**7 + 256 * np.arange(layout.rows)
    segment["valid"][:] = True
    return SegmentCodec(layout.fields()), segment


if __name__ == "__main__":
    main()
