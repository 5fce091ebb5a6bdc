"""What an environment has to keep to: the rules of ``rollmill envs check``, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """``expected`` may hold {names}, filled where the rule is broken."""

    level: Level
    expected: str
    advice: str


def _error(expected: str, advice: str) -> Rule:
    return Rule("error", expected, advice)


def _warning(expected: str, advice: str) -> Rule:
    return Rule("warning", expected, advice)


RULES: dict[str, Rule] = {
    # -- calls
    "raises": _error(
        "it does not raise",
        "run it by hand with this seed to see the whole traceback; a run would restart it and count the fault",
    ),
    "reset-signature": _error("reset takes a seed", "Gymnasium's signature is reset(self, *, seed=None, options=None)"),
    "hang": _error(
        "the call returns within {seconds:g} s",
        "find what it waits for; if it is only slow, give --timeout more seconds "
        "(and sampling.step_timeout, sampling.reset_timeout, sampling.start_timeout in a run)",
    ),
    "crash": _error(
        "the process lives on",
        "an environment raises an exception when something is wrong; it must not end its process",
    ),
    "close-twice": _warning("a second close() does nothing", "remember that it is closed"),
    "reset-needed": _warning(
        "it raises: there is no episode to step",
        "raise an error until reset() was called; a run always resets first, your own scripts may forget",
    ),
    "end-forgotten": _warning(
        "it raises, or says again that the episode is over", "remember the end until reset() is called"
    ),
    # -- what reset and step return
    "reset-return": _error("(observation, info)", "return both from reset()"),
    "step-return": _error("{wanted}", "return these from step(); a tuple of 4 is the API of gym before 0.26"),
    "info-type": _error("info is a dict", "return {{}} where there is nothing to tell"),
    "info-stats": _error(
        "episode_stats are numbers{per_agent}", "give plain numbers; other things go elsewhere in info"
    ),
    "reward-type": _error("reward is a number{per_agent}", "return float(reward)"),
    "reward-nan": _error("reward is finite", "look for a division by zero"),
    "terminated-type": _error("terminated is a bool{per_agent}", "return bool(terminated)"),
    "truncated-type": _error("truncated is a bool{per_agent}", "return bool(truncated)"),
    # -- observations
    "obs-structure": _error("{wanted}", "return every entry of the observation space, and no other"),
    "obs-type": _error("a numpy array {wanted}", "return np.asarray(observation, dtype)"),
    "obs-shape": _error("shape {wanted}", "return the shape of the observation space, or change the space"),
    "obs-dtype": _error("dtype {wanted}", "return the dtype of the observation space, or change the space"),
    "obs-float-dtype": _warning("dtype {wanted}", "return that dtype; rollmill converts it, other tools may refuse it"),
    "obs-range": _error("{wanted}", "clip or scale the observation, or widen the bounds of the space"),
    "obs-nan": _error("finite values", "look for a division by zero, an overflow or a value never set"),
    "obs-unwritten": _error("every value is written", "write every value of every field in reset() and in step()"),
    "obs-kept": _error(
        "the observation before stays as it was", "write only into the arrays of the current call; keep no reference"
    ),
    "obs-reused": _warning(
        "every observation is memory of its own",
        "return a copy: rollmill copies at once, but wrappers and replay buffers may keep what you return",
    ),
    # -- actions
    "action-changed": _error(
        "the action array stays as it is", "copy the action before changing it: the array is the row the learner reads"
    ),
    "action-bounds": _warning(
        "continuous actions have bounds", "bound the Box: random and first actions have no scale otherwise"
    ),
    "mask-values": _error("the action mask is zeros and ones", "1 allows, 0 forbids"),
    "mask-empty": _error(
        "the action mask allows a choice of every component", "end the episode where nothing can be done"
    ),
    # -- seeds and state
    "seed-leak": _error(
        "the seed fixes the episode",
        "draw from self.np_random, or from np.random.default_rng(seed), never from np.random.* or random.*",
    ),
    "irreproducible": _error(
        "the seed fixes the episode",
        "look for time, threads, hash order, unset memory or counters outside of the instance; "
        "runs cannot be repeated, and recorded episodes not be replayed from their seeds",
    ),
    "seed-ignored": _warning(
        "different seeds give different episodes",
        "draw from a generator made of the seed (self.np_random); all right if nothing is random here",
    ),
    "shared-generator": _warning(
        "random numbers come from the environment's own generator",
        "draw from self.np_random, or from np.random.default_rng(seed)",
    ),
    "reset-stale": _error("reset() begins anew", "set everything that an episode changes in reset()"),
    "neighbours": _error(
        "an episode is the same whatever runs beside it",
        "keep all state in the instance: no module or class variables, no np.random.seed, no shared files",
    ),
    # -- the whole
    "endless": _warning(
        "an episode ends",
        "check more with --steps, or set env.max_episode_steps: returns are reported at the end of episodes",
    ),
    "batch": _error(
        "no fault when it is stepped as in a run",
        "a run restarts such an environment and goes on, up to env.fault_limit times",
    ),
    "left-running": _warning(
        "what it has started ends when it is closed",
        "end it in close(): a run ends it in the end, but every environment that is restarted before would leave more",
    ),
    "threads": _warning(
        "few threads",
        "limit them (OMP_NUM_THREADS, the library's own setting): a worker holds many environments",
    ),
}
