"""Every error a user can meet, in one tree.

``RollmillError`` is the root; the CLI prints its message without a traceback and exits with
``exit_code``. Anything else that reaches the CLI is a bug and keeps its traceback.
"""

from __future__ import annotations

import signal
import traceback

from rollmill.core.text import cut

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``: every command imports this
if TYPE_CHECKING:
    from typing import Any

MESSAGE_CHARACTERS = 1000
TRACE_CHARACTERS = 20_000


def error_text(error: BaseException) -> str:
    """Return ``ValueError: what it says`` for what user code raises: cut where it is long; never raises itself."""
    try:
        said = str(error)
    except Exception as second:  # noqa: BLE001 - user code again
        said = f"(it cannot be shown: its text raises {type(second).__name__})"
    return f"{type(error).__name__}: {cut(said, MESSAGE_CHARACTERS)}"


def trace_text(error: BaseException) -> str:
    """Return the traceback, as Python prints it; cut where it is long."""
    return cut("".join(traceback.format_exception(error)), TRACE_CHARACTERS)


class RollmillError(Exception):
    """Tells in its message what went wrong, where, and what to do."""

    exit_code = 1


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; ``exit_code`` is the one that shells give to it.

    No RollmillError: nothing went wrong, and whoever handles Ctrl-C handles it, too.
    """

    def __init__(self, number: int, hint: str = "") -> None:
        super().__init__(f"interrupted{f'; {hint}' if hint else ''}")
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return 128 + signal; where the signal is not known, that of Ctrl-C."""
    return interrupt.exit_code if isinstance(interrupt, Interrupted) else 128 + signal.SIGINT


class ConfigError(RollmillError):
    """The configuration or the command line is wrong; nothing was started."""

    exit_code = 2


class RunFolderError(RollmillError):
    """The run folder cannot be used as asked (it exists, is locked, or is not writable)."""

    exit_code = 2


class RunFolderLost(RunFolderError):
    """The run folder has gone while the run was under way: nothing more can be saved."""

    exit_code = 1


class MissingExtraError(ConfigError):
    """An optional package is needed and not installed; the message holds the install command."""


class UntrustedCodeError(ConfigError):
    """A file that somebody else may have made names code, and the user has not said that it may be run."""


class CheckpointError(RollmillError):
    """A checkpoint could not be written, read or trusted."""


class StoreError(RollmillError):
    """A trajectory store could not be written, read or trusted."""


class StoreFull(StoreError):
    """No space was left while writing a store; what was acknowledged before stays readable."""


class BadBlock(StoreError):
    """A record of a store is damaged: its checksum or its contents do not match.

    ``record`` is its number in the shard (-1: not found at all), ``episode`` the uid it belongs to where
    known, ``offset`` its place in bytes.
    """

    def __init__(self, reason: str, *, shard: str, record: int, offset: int, episode: int | None = None) -> None:
        whose = "" if episode is None else f" of episode {episode:016x}"
        super().__init__(f"shard {shard}, record {record} at byte {offset}{whose}: {reason}")
        self.reason = reason
        self.shard = shard
        self.record = record
        self.offset = offset
        self.episode = episode

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by its parts: it comes home from worker processes."""
        import functools

        make = functools.partial(
            BadBlock, shard=self.shard, record=self.record, offset=self.offset, episode=self.episode
        )
        return make, (self.reason,)


class EnvError(RollmillError):
    """An environment broke its contract (raised, hung, returned nonsense) beyond what restarts allow."""


class PolicyError(RollmillError):
    """A policy that the user wrote raised, or answered with something that is no action."""


class ObserverError(RollmillError):
    """An observer that the user wrote raised, or returned something that cannot be reported."""


class WorkerError(RollmillError):
    """A worker process died or stopped answering beyond what replacements allow."""


class RankError(RollmillError):
    """A rank (one of several learners of a run) died, lost the others, or no longer agrees with them."""


class LostRankError(RankError):
    """One of the others is lost, or the connection to them; those that are left may go on without it."""


class ClusterError(RollmillError):
    """Other machines that should sample for a run are missing, do not fit it, or cannot be reached."""


class NonFiniteError(RollmillError):
    """A NaN or infinity appeared while learning; the message names the first place."""


class MemoryFull(RollmillError):
    """The memory of the machine or of its GPU does not hold what was asked for."""


class HubError(RollmillError):
    """The Hugging Face Hub could not be reached, refused, or has not what was asked for."""


class LaunchError(RollmillError):
    """A launch of many runs could not be made, continued or watched; what runs already goes on."""
