"""Every error a user can meet, in one tree.

``RollmillError`` is the root; the CLI prints its message without a traceback and exits with
``exit_code``. Anything else that reaches the CLI is a bug and keeps its traceback.
"""


class RollmillError(Exception):
    """Something went wrong that the message explains: what, where, and what to do."""

    exit_code = 1


class ConfigError(RollmillError):
    """The configuration or the command line is wrong; nothing was started."""

    exit_code = 2


class RunFolderError(RollmillError):
    """The run folder cannot be used as asked (it exists, is locked, or is not writable)."""

    exit_code = 2


class MissingExtraError(ConfigError):
    """An optional package is needed and not installed; the message holds the install command."""


class CheckpointError(RollmillError):
    """A checkpoint could not be written, read or trusted."""


class EnvError(RollmillError):
    """An environment broke its contract (raised, hung, returned nonsense) beyond what restarts allow."""


class WorkerError(RollmillError):
    """A worker process died or stopped answering beyond what replacements allow."""


class NonFiniteError(RollmillError):
    """A NaN or infinity appeared while learning; the message names the first place."""
