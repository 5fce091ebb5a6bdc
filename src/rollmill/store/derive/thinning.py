"""How much of what was once written a store still has.

A recorder that may keep no more (``recording.at_budget=thin``) drops a random half of all episodes, those that are
still to come included. Every episode draws its number when it begins; those below the share that is left stay. So each
episode that is there was kept with at most this probability, and ``thinned.json`` says so for all of them at once.
"""

from __future__ import annotations

from pathlib import Path

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.opening import read_json

NAME = "thinned.json"


def share_left(store: Path) -> float:
    """Return the share of episodes that thinning has left, 1 for a store that was never thinned."""
    path = store / NAME
    try:
        share = read_json(path)["share"]
    except FileNotFoundError:
        return 1.0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}): nobody knows how likely its episodes were") from None
    if not isinstance(share, float) or not 0 < share <= 1:
        raise StoreError(f"{path}: a share above 0 and at most 1 is expected, not {share!r}")
    return share


def note_share(store: Path, share: float) -> None:
    """Write the share down before anything is dropped: a crash in between leaves more than it says, never less."""
    atomic.write_json(store / NAME, {"share": share})
