"""The process in which ``rollmill envs check`` uses an environment; started by ``check``, stage by stage."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.child import begin_errand
from rollmill.core.errors import ConfigError, RollmillError, error_text
from rollmill.core.exits import leave
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import BatchEnv, Env
from rollmill.core.seeds import Seeds
from rollmill.core.slots import Arena, RowOut, SegmentLayout
from rollmill.envs.batch import MAKE, STEP, BatchSetup, EnvBatch, Fault, random_actions
from rollmill.envs.check.calls import Beat, Broken, Findings, Player, global_state, set_global_seeds
from rollmill.envs.check.runner import BEAT, CheckOptions
from rollmill.envs.make import EnvInstance, check_env_settings, make_env
from rollmill.envs.settings import EnvSettings

STREAM_STEPS = 150
"""Steps of a stream that is played twice."""
BATCH_STEPS = 300
BATCH_ENVS = 2
PLAY_SECONDS = 20.0
SPEED_SECONDS = 1.0
MANY_THREADS = 16
ACTIONS = 64

Stream = list[bytes]
"""A fingerprint of everything an episode showed, step by step."""


class Checker:
    """Runs the stages on one environment."""

    def __init__(self, settings: EnvSettings, options: CheckOptions, findings: Findings, beat: Beat) -> None:
        self._settings, self._options = settings, options
        self._findings, self._beat = findings, beat
        self._summary: dict[str, Any] = {}
        self._spec: EnvSpec | None = None
        self._whole = True  # no stage was broken off
        self._repeats = True  # a seed fixes an episode

    def run(self) -> None:
        """Run all stages; one that breaks off does not keep the others from running."""
        stages: list[tuple[str, Callable[[], None]]] = [
            ("play", self._play),
            ("seeds", self._seeds),
            ("neighbours", self._neighbours),
            ("batch", self._batch),
            ("speed", self._speed),
            ("order", self._order),
        ]
        if self._settings.vector:
            stages = [("build", self._build_vector), ("batch", self._batch)]
        for name, stage in stages:
            self._beat.begin(name)
            try:
                stage()
            except Broken:
                self._whole = False
                if self._spec is None:  # it cannot even be built
                    break
            self._beat.leave()
        self._findings.write(summary=self._summary)
        self._findings.write_counts()

    # -- stages ---------------------------------------------------------------------------------

    def _build_vector(self) -> None:
        from rollmill.envs.vector import VectorLane

        lane = self._player(lambda: VectorLane(self._settings))
        self._know(lane.spec)
        lane.close()

    def _play(self) -> None:
        """Play whole episodes with random actions."""
        player = self._player(self._inspected)
        self._know(player.spec)
        self._repeats = self._summary["repeatable"] = bool(getattr(player.env, "repeatable", True))
        rng = np.random.default_rng(self._options.seed)
        lengths: list[int] = []
        returns: list[float] = []
        deadline = time.monotonic() + PLAY_SECONDS
        player.reset(self._options.seed)
        for played in range(1, self._options.steps + 1):
            player.step(player.act(rng))
            self._summary["steps"] = played
            limit = self._settings.max_episode_steps
            if player.done.all() or (limit and player.steps >= limit):
                lengths.append(player.steps)
                returns.append(float(player.returns.mean()))
                player.reset(self._options.seed + len(lengths))
            if time.monotonic() > deadline:
                break
        self._summary["episodes"] = len(lengths)
        if lengths:
            self._summary |= {"length_min": min(lengths), "length_mean": float(np.mean(lengths))}
            self._summary |= {"length_max": max(lengths), "return_mean": float(np.mean(returns))}
        else:
            self._add("endless", "stage play", f"none did in {self._summary['steps']} steps")
        self._close_twice(player)

    def _seeds(self) -> None:
        """Check that the same seed gives the same stream, whatever the process's shared generators are at."""
        if not self._repeats:
            return
        try:
            self._compare_streams(self._stream_steps)
        except Broken:
            self._compare_streams(0)  # an episode that breaks off has begun all the same
            raise

    def _compare_streams(self, steps: int) -> None:
        seed = self._options.seed
        player, first, touched = self._fresh_stream(1, seed, steps)
        other = _in_turn([player], [seed + 1], steps)[0]
        again = _in_turn([player], [seed], steps)[0]
        player.close()
        second_player, second, _ = self._fresh_stream(2, seed, steps)
        second_player.close()
        if first != second:
            self._unstable(first, second, touched, steps)
            return
        if again != first:
            found = "an instance that was used before shows another episode than a new one with the same seed"
            self._add("reset-stale", _where(first, again, seed), found)
        if other == first and steps:  # many environments begin alike, whatever their seed is
            self._add("seed-ignored", f"seeds {seed} and {seed + 1}", "the same to the bit")
        elif touched:
            self._add("shared-generator", touched, "the shared one (np.random, random) was drawn from or seeded")

    def _neighbours(self) -> None:
        """Check that two environments in one process, stepped in turn, do not influence each other."""
        if not self._repeats:
            return
        seed = self._options.seed
        alone = [self._fresh_stream(1, seed + k, self._stream_steps) for k in range(2)]
        for player, _, _ in alone:
            player.close()
        set_global_seeds(1)
        pair = [self._player(self._inspected) for _ in range(2)]
        streams = _in_turn(pair, [seed, seed + 1], self._stream_steps)
        for player in pair:
            player.close()
        for k, (stream, (_, single, _)) in enumerate(zip(streams, alone)):
            if stream != single:
                found = "it changes when a second environment of this kind is stepped in the same process"
                self._add("neighbours", _where(stream, single, seed + k), found)
                return

    def _batch(self) -> None:
        """Step several in one batch, as the trainer does, and start them again when they fail."""
        assert self._spec is not None
        faults: list[Fault] = []
        setup = BatchSetup(
            spec=self._spec,
            make=lambda index: make_env(self._settings, EnvInstance(index=index)),
            envs=range(BATCH_ENVS),
            seeds=Seeds(self._options.seed),
            watch=self._beat,
            on_fault=faults.append,
            on_episode=lambda lane, episode, stats: None,
            first_episode=np.zeros(BATCH_ENVS, np.int64),
        )
        try:
            self._step_batch(setup)
        except RollmillError as error:
            if not faults:
                self._add("batch", "as in a run", str(error))
        for fault in faults:
            self._add("batch", fault.describe().partition(": ")[0], fault.error, key=fault.error)

    def _step_batch(self, setup: BatchSetup) -> None:
        lanes = BATCH_ENVS * setup.spec.agents
        out = RowOut(Arena(SegmentLayout(setup.spec, 1, lanes), 1), 0, 0)
        batch: BatchEnv
        if self._settings.vector:
            from rollmill.envs.vector import VectorBatch

            batch = VectorBatch(self._settings, setup)
        else:
            batch = EnvBatch(self._settings, setup)
        rng = np.random.default_rng(self._options.seed)
        deadline = time.monotonic() + PLAY_SECONDS
        steps, begun = 0, time.monotonic()
        try:
            batch.reset(out)
            while steps < min(BATCH_STEPS, self._options.steps) and time.monotonic() < deadline:
                batch.step(random_actions(setup.spec, rng, out.obs, lanes), out)
                steps += 1
        finally:
            batch.close()
        self._summary.setdefault("steps_per_second", steps * BATCH_ENVS / max(time.monotonic() - begun, 1e-9))

    def _speed(self) -> None:
        """Measure the steps per second of one environment that nobody looks at, and its threads and processes."""
        if not self._whole:
            return
        threads, processes = _tasks()
        player = self._player(self._plain)
        player.reset(self._options.seed)
        self._summary["steps_per_second"] = player.call(STEP, lambda: self._measure(player))
        if threads:
            now = _tasks()
            self._summary |= {"threads": now[0] - threads, "processes": now[1] - processes}
            if self._summary["threads"] > MANY_THREADS:
                self._add("threads", "one environment", f"it has started {self._summary['threads']}")
        player.close()

    def _measure(self, player: Player) -> float:
        env, spec, obs, rng = player.env, player.spec, player.obs, np.random.default_rng(self._options.seed)
        actions = [player.act(rng) for _ in range(ACTIONS)]
        over = np.zeros(spec.agents, bool)
        steps, spent = 0, 0.0
        while spent < SPEED_SECONDS and steps < max(self._options.steps, ACTIONS):
            action = player.act(rng) if spec.masked else actions[steps % ACTIONS]
            self._beat.enter(0, STEP, 0, steps)
            begun = time.perf_counter()
            _, terminated, truncated, _ = env.step(action, obs)
            steps += 1
            over |= np.asarray(terminated, bool)
            over |= np.asarray(truncated, bool)
            if over.all():
                over[:] = False
                env.reset(self._options.seed + steps, obs)
            spent += time.perf_counter() - begun
        return steps / spent

    def _order(self) -> None:
        """Step where there is no running episode."""
        player = self._player(self._inspected)
        rng = np.random.default_rng(self._options.seed)
        blank = random_actions(player.spec, rng, _all_allowed(player.spec), player.spec.agents)
        if self._accepts(player, blank):
            self._add("reset-needed", "step() before the first reset()", "it answered")
        player.reset(self._options.seed)
        for _ in range(self._options.steps):
            player.step(player.act(rng))
            if player.done.all():
                break
        else:
            player.close()
            return
        end = player.where
        answer = self._accepts(player, player.act(rng) if not player.spec.masked else blank)
        if answer and not np.any(answer[1]) and not np.any(answer[2]):
            self._add("end-forgotten", f"the step after {end}, where the episode ended", "it went on")
        player.close()

    # -- parts ----------------------------------------------------------------------------------

    def _plain(self) -> Env:
        return make_env(self._settings, EnvInstance())

    def _inspected(self) -> Env:
        """Build an environment, with a look at what a Gymnasium environment really returns."""
        env = self._plain()
        from rollmill.envs.gym_env import GymEnv

        if isinstance(env, GymEnv):
            from rollmill.envs.check.gym import Inspected

            env.env = Inspected(env.env, self._findings)
        return env

    def _player(self, make: Callable[[], Env]) -> Player:
        return Player(make, self._findings, self._beat)

    def _know(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._findings.write(spec=spec.to_dict())
        action = spec.action
        if not np.isfinite([*action.low, *action.high]).all():
            self._add("action-bounds", "the action space", f"{action.low} to {action.high}")

    def _close_twice(self, player: Player) -> None:
        player.close()
        try:
            player.env.close()
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the finding
            self._add("close-twice", "close()", error_text(error))

    def _accepts(self, player: Player, action: Array) -> Any:
        """Return the answer to a step that is out of order; None where it raised, as it should."""
        self._beat.enter(0, STEP, 0, 0)
        try:
            return player.env.step(action, player.obs) or ("nothing", False, False)
        except Exception:  # noqa: BLE001 - raising is right, whatever it raises
            return None
        except BaseException as error:  # noqa: BLE001 - an environment does not end its process
            self._add("raises", "a step() that is out of order", error_text(error))
            return None
        finally:
            self._beat.leave()

    @property
    def _stream_steps(self) -> int:
        return min(STREAM_STEPS, self._options.steps)

    def _fresh_stream(self, shared: int, seed: int, steps: int) -> tuple[Player, Stream, str]:
        """Return (a new environment, its stream, the first call that touched the shared generators)."""
        set_global_seeds(shared)
        before = global_state()
        player = self._player(self._inspected)
        touched = "the constructor" if global_state() != before else ""
        set_global_seeds(shared)
        before = global_state()
        rng = np.random.default_rng(seed)
        stream = [player.reset(seed)]
        calls = ["reset()"]
        while len(stream) <= steps and not player.done.all():
            if not touched and global_state() != before:
                touched = f"{calls[-1]} with seed {seed}"
            stream.append(player.step(player.act(rng)))
            calls.append(f"step() {len(stream) - 2} of an episode")
        if not touched and global_state() != before:
            touched = f"{calls[-1]} with seed {seed}"
        return player, stream, touched

    def _unstable(self, first: Stream, second: Stream, touched: str, steps: int) -> None:
        """Find out why two fresh environments differ: because of the shared generators, or of something else?"""
        self._repeats = False
        where = _where(first, second, self._options.seed)
        player, third, _ = self._fresh_stream(1, self._options.seed, steps)
        player.close()
        if third == first:
            found = "it also depends on the generator that the whole process shares (np.random, random)"
            self._add("seed-leak", where, f"{found}; first touched in {touched or 'an unknown call'}")
        else:
            self._add("irreproducible", where, "two new environments with the same seed and actions differ")

    def _add(self, rule: str, where: str, found: str, key: str = "") -> None:
        self._findings.add(rule, where, found, key)


def _in_turn(players: list[Player], seeds: list[int], steps: int) -> list[Stream]:
    """Play one episode each, step by step in turn."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    streams = [[player.reset(seed)] for player, seed in zip(players, seeds)]
    for _ in range(steps):
        for player, rng, stream in zip(players, rngs, streams):
            if not player.done.all():
                stream.append(player.step(player.act(rng)))
    return streams


def _where(one: Stream, other: Stream, seed: int) -> str:
    """Name the first place where two streams of the same seed differ."""
    t = next((t for t, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return f"{f'step() {t - 1}' if t else 'reset()'} of an episode with seed {seed}"


def _all_allowed(spec: EnvSpec) -> dict[str, Array]:
    return {f.name: np.ones((spec.agents, *f.shape), f.dtype) for f in spec.observation}


def _tasks() -> tuple[int, int]:
    """Count (threads, processes) of this process and its descendants; zeros where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    threads = 0
    for pid in family:
        try:
            threads += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return threads, len(family) if threads else 0


def main(answer_fd: int) -> None:
    setup, reply = begin_errand(answer_fd)
    os.set_inheritable(setup["beat"], False)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    settings = EnvSettings.of(setup["env"])
    beat = Beat(mmap.mmap(setup["beat"], BEAT.size))
    try:
        beat.enter(0, MAKE, 0, 0)  # its module is imported now, which may take long
        check_env_settings(settings)
        Checker(settings, CheckOptions(**setup["options"]), Findings(reply), beat).run()
    except ConfigError as error:
        reply(refused=str(error), kind=type(error).__name__)
    reply(done=True)
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
