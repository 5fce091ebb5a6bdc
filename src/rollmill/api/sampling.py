"""Experience for a learner of one's own: segments of many environments that are stepped in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rollmill.api.machine import machine_as_it_was
from rollmill.api.policies import load_policy
from rollmill.api.run import Run
from rollmill.api.words import Env, Files, env_words, files_of, said_in_python, setting_words
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, PolicyError, error_text
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.seeds import Seeds
from rollmill.envs.probe import Probe, probe_here
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig, require_env
from rollmill.runs.train.observers import Trajectory, cut_trajectories
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.schedule import EpisodeSchedule

Act: TypeAlias = Callable[[Any], Any]
"""Observations ``[n, *shape]`` (by name, where there are several fields) of n lanes -> actions ``[n, ...]``, or a tuple
of actions, log-probabilities ``[n]`` and values ``[n]``, of which the last one or two may be left out."""


def sample(
    env: Env | None = None,
    policy: str | Path | Run | LoadedPolicy | Act = "random",
    *,
    seed: int = 0,
    config: Files = (),
    overrides: Mapping[str, Any] | None = None,
    **blocks: Mapping[str, Any],
) -> Iterator[Trajectory]:
    """Yield segments of experience, without end, for a learner of one's own::

        for segment in rollmill.sample("CartPole-v1", policy, sampling={"rollout": 64}):
            learn(segment.obs["obs"], segment.actions, segment.rewards, segment.valid)

    A segment is ``T`` steps (``sampling.rollout``) of the ``L`` lanes of one group, as named arrays that are the
    caller's own; ``Trajectory`` explains them. Environments are stepped by worker processes, with the settings of
    trainings (``sampling={"mode": "serial"}``: in this process). The policy is called in the thread that asks for the
    next segment, and at no other time: it may be changed between two segments. Leaving the loop ends the workers.

    Args:
        env: As for ``rollmill.train``; may be left out where the policy knows its own.
        policy: What ``rollmill.load_policy`` returns, or a name that it takes; or a callable: observations
            ``[n, *shape]`` of n lanes (a dict of them, where there are several fields) to actions ``[n, ...]``, or to
            ``(actions, log_probs, values)``.
        seed: Root of all randomness.
        config: Settings files, as for ``rollmill.train``.
        overrides: Settings by dotted key.
        blocks: Blocks of settings as dicts.
    """
    with said_in_python():
        files = files_of(config)
        words = setting_words(blocks, env_words(env), {"run.seed": seed}, overrides or {})
        agent = load_policy(policy) if isinstance(policy, str | Path | Run) else policy
        settings = load_config(TrainConfig, files, words)
        if isinstance(agent, LoadedPolicy) and env is None and agent.env is not None:
            settings = replace(settings, env=agent.env)
        else:
            require_env(files, words, "rollmill.sample")
        settings = size(settings)
        if not callable(agent) and not isinstance(agent, LoadedPolicy):
            raise ConfigError(f"policy: expected a policy, or a callable from observations to actions, got {agent!r}")
    return _segments(settings, agent)


def _segments(config: TrainConfig, policy: LoadedPolicy | Act) -> Iterator[Trajectory]:
    serial = config.sampling.mode == "serial"
    with process_scope(inside=serial) as environment:
        if serial:
            spec = probe_here(config.env)
        else:
            spec = Probe(config.env, environment).result(config.sampling.start_timeout)
        config = size(config, spec)
        seeds = Seeds(config.run.seed)
        schedule = EpisodeSchedule(seeds.branch("envs"), config.sampling.workers * config.sampling.envs_per_worker)
        plan = SamplerPlan(
            *(config.sampling, config.env, spec, seeds.branch("envs"), 1),
            environment=environment,
            schedule=None if config.env.vector else schedule,
        )
        actor: Policy
        if isinstance(policy, LoadedPolicy):
            policy.check(spec)
            targets = [max(policy.require_targets(), default=0.0)] * schedule.envs * spec.agents
            with machine_as_it_was():  # the loop around this is the user's
                actor = policy.build(spec, schedule, seeds.branch("actions").integer(), targets)
        else:
            actor = CallablePolicy(spec, policy)
        sampler = Sampler(plan, [actor])
        try:
            sampler.start()
            while True:
                taken = sampler.take(1, timeout=0)
                if taken is None:
                    sampler.round()
                    continue
                batch, groups = sampler.arena.gather(taken), sampler.inference.group_of_slot[taken].copy()
                sampler.release(taken)
                yield cut_trajectories(batch, groups, config.sampling.groups)[0]
        finally:
            sampler.stop()


class CallablePolicy(Policy):
    """A function of the user's that decides for many lanes at once."""

    def __init__(self, spec: EnvSpec, act: Act) -> None:
        self._act, self._field = act, spec.action.field
        self._only = spec.observation[0].name if len(spec.observation) == 1 else None

    def act(self, request: ActRequest) -> PolicyOutput:
        count = len(request.lanes)
        try:
            found = self._act(request.obs[self._only] if self._only else request.obs)
        except Exception as error:
            raise PolicyError(f"the policy failed: {error_text(error)}") from error
        actions, *rest = found if isinstance(found, tuple) else (found,)
        if len(rest) > 2:
            raise PolicyError(
                f"the policy returned {1 + len(rest)} arrays, expected actions, log_probs, values at most"
            )
        rest += [np.zeros(count)] * (2 - len(rest))
        return PolicyOutput(
            action=self._array("actions", actions, (count, *self._field.shape), self._field.dtype),
            log_prob=self._array("log_probs", rest[0], (count,), "float32"),
            value=self._array("values", rest[1], (count,), "float32"),
        )

    @staticmethod
    def _array(name: str, values: Any, shape: tuple[int, ...], dtype: str) -> Array:
        """Turn numbers of whatever kind (tensors, too) into the array that is expected."""
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.shape != shape or (array.dtype.kind not in "iub" and np.dtype(dtype).kind != "f"):
            raise PolicyError(f"the policy returned {name} of {array.dtype} {array.shape}, expected {dtype} {shape}")
        return array.astype(dtype, copy=False)
