"""The shortest way over all treasures that are left, to the end: what the oracle walks, and what ``route`` rewards.

It is known from the whole map, which the agent does not see. The lengths from every place over every set of
places are worked out once (Held and Karp's dynamic programme), so that a step only looks them up.
"""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import Array


class Routes:
    """Shortest ways to one end over any of some places (sites)."""

    def __init__(self, between: Array, places: tuple[int, ...], end: int) -> None:
        """Work out the shortest ways; ``between`` ``[SITES, SITES]``: how far sites are apart, in any measure."""
        self._places, self._end = np.array(places, np.int64), end
        self._bits = 1 << np.arange(len(places))
        self._beyond = self._work_out(between)

    def _work_out(self, between: Array) -> Array:
        """Return ``[2 ** places, places]``, from a place over all places of a set (bit k: place k) to the end."""
        inner = between[np.ix_(self._places, self._places)]
        beyond = np.empty((1 << len(self._places), len(self._places)))
        beyond[0] = between[self._places, self._end]
        for chosen in range(1, len(beyond)):
            first = np.flatnonzero(chosen & self._bits)
            beyond[chosen] = (inner[:, first] + beyond[chosen ^ self._bits[first], first]).min(1)
        return beyond

    def lengths(self, away: Array, left: Array) -> Array:
        """Return ``[n]`` float64, lengths of the shortest ways; ``away`` ``[n, SITES]``: how far each site is, ``left``
        ``[n, SITES]`` bool: which are still to be visited."""
        over = self._over(away, left).min(1, initial=np.inf)
        found: Array = np.where(np.isfinite(over), over, away[:, self._end])
        return found

    def first(self, away: Array, left: Array) -> int:
        """Return the site where the shortest way over those ``left`` goes first; ``[SITES]`` each, one must be left."""
        return int(self._places[self._over(away[None], left[None])[0].argmin()])

    def _over(self, away: Array, left: Array) -> Array:
        """Return ``[n, places]``, the length of the shortest way that begins with each place; infinite if not left."""
        wanted = left[:, self._places]
        others = (wanted @ self._bits)[:, None] & ~self._bits
        over = away[:, self._places] + self._beyond[others, np.arange(len(self._places))]
        found: Array = np.where(wanted, over, np.inf)
        return found
