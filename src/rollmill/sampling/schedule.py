"""Which numbered episode each environment plays: a set of episodes that does not depend on how many play it.

An episode's number gives the seed of its environment and of its policy, so episode 17 is the same one
whichever env of whichever machine plays it. A collection of N episodes is the numbers 0 .. N - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollmill.core.seeds import Seeds


@dataclass(frozen=True)
class EpisodeSchedule:
    """The n-th episode of env e (of ``envs``) stands at position ``e + envs * n`` of this sequence:
    ``gaps``, then ``start``, ``start + stride``, ``start + 2 * stride`` and so on.
    """

    seeds: Seeds
    envs: int
    gaps: tuple[int, ...] = ()
    start: int = 0
    stride: int = 1
    alike: int = 1
    """So many episodes in a row are reset with the same seed: the same game for everybody who plays it."""

    def position(self, env: int, episode: int) -> int:
        return env + self.envs * episode

    def number(self, env: int, episode: int) -> int:
        position = self.position(env, episode)
        if position < len(self.gaps):
            return self.gaps[position]
        return self.start + (position - len(self.gaps)) * self.stride

    def env_seed(self, env: int, episode: int) -> int:
        """Return what the env is reset with."""
        return self.seeds.branch("episode", self.number(env, episode) // self.alike).integer()

    def policy_seeds(self, env: int, episode: int, agent: int) -> Seeds:
        """Return where the policy's randomness comes from, for one agent of one episode."""
        return self.seeds.branch("policy", self.number(env, episode), agent)
