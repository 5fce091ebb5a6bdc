"""At most once: what has come from the incarnations of all nodes, and what is lost for good.

A node numbers its segments 1, 2, 3, ... within an incarnation. No call is ever repeated, so a number comes once, later
later or never: what was passed over is lost, and counted. A number that has been there is refused.

What a node has finished since its last word is known to nobody when it dies, and in no count. An incarnation that was
given up is not listened to: whatever of its segments is still under way was counted as lost when it was closed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Account:
    """What is known of one incarnation's segments."""

    last: int = 0
    """The highest number so far."""
    told: int = 0
    """Segments that the node said it has finished, those under way to us included."""


@dataclass
class Deliveries:
    """Counts segments of all incarnations since the start. Every segment that a node has told of is in one of the
    counts, and in no other; those that have not come yet, of incarnations that are open, are ``waiting``.
    """

    received: int = 0
    lost: int = 0
    """Finished on a node (as far as it told), and never received."""
    refused: int = 0
    """Came a second time, or from an incarnation that is not open: not used, and in no other count."""

    def __post_init__(self) -> None:
        self._open: dict[int, Account] = {}

    @property
    def waiting(self) -> int:
        """Segments finished on nodes that are still at work, and not received yet."""
        return sum(account.told - account.last for account in self._open.values())

    def open(self, incarnation: int) -> None:
        self._open[incarnation] = Account()

    def take(self, incarnation: int, number: int) -> int | None:
        """Count a segment that has come. Returns None if it is not to be used, else how many before it are lost."""
        account = self._open.get(incarnation)
        if account is None or number <= account.last:
            self.refused += 1
            return None
        hole = number - account.last - 1
        account.last = number
        account.told = max(account.told, number)
        self.received += 1
        self.lost += hole
        return hole

    def hears(self, incarnation: int, finished: int) -> None:
        """Note how many segments a node says it has finished."""
        account = self._open.get(incarnation)
        if account is not None:
            account.told = max(account.told, finished)

    def damaged(self) -> None:
        """Count what was taken as lost: it turned out to be unreadable."""
        self.received -= 1
        self.lost += 1

    def close(self, incarnation: int) -> int:
        """End an incarnation; returns how many of its segments are lost with it."""
        account = self._open.pop(incarnation, None)
        if account is None:
            return 0
        rest = account.told - account.last
        self.lost += rest
        return rest
