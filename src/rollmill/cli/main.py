"""The ``rollmill`` command: finds the verb, runs it, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong configuration or command line, 128 + n ended by signal n.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from rollmill import __version__
from rollmill.cli.help import explain, usage
from rollmill.cli.tree import MOVED, Verb, command, find
from rollmill.core.errors import ConfigError, Interrupted, RollmillError, exit_code_of
from rollmill.core.exits import leave
from rollmill.core.out_of_memory import refused_by_system
from rollmill.core.stopping import CommandSignals
from rollmill.core.terminal import printable
from rollmill.core.text import nearest

TEMP_DIR = "run.temp_dir="
OF_RUNS = ("train", "offline", "launch", "config")
"""Verbs whose settings have ``run.temp_dir`` themselves, or do no more than name it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Without ``arguments``, as the console script calls it, this is the life of the process: it also ends here, whatever
    threads and children user code has left. Under a debugger or a profiler it returns: they want to see the end.
    """
    if arguments is None and sys.gettrace() is None and sys.getprofile() is None:
        leave(_live())
    return _run_command(list(sys.argv[1:] if arguments is None else arguments))


def _live() -> int:
    """Run the command line of this process; returns its exit code."""
    if sys.stderr is not None:
        faulthandler.enable()  # in serial mode, a simulator that crashes takes this process along: with its stack
    words = sys.argv[1:]
    signals = CommandSignals(command(find(words)[0] or words[:1]))
    try:
        code = _run_command(words, signals.loaded)
        signals.ignore()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except KeyboardInterrupt as error:  # in the last moment: everything is put away already
        code = exit_code_of(error)
    except BaseException:  # noqa: BLE001 - a bug: what Python would do, had it the last word
        print(printable(traceback.format_exc()), file=sys.stderr)
        code = 1
    return code


def _run_command(words: list[str], on_loaded: Callable[[], None] = lambda: None) -> int:
    try:
        try:
            return _dispatch(words, on_loaded)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
        return 141


def _dispatch(words: list[str], on_loaded: Callable[[], None]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words[:1] == ["--version"]:
        print(f"rollmill {__version__}")
        return 0
    name, verb, rest = find(words)
    wants_help = any(word in ("-h", "--help") for word in (rest if verb.target else rest[:1]))
    if wants_help or (not rest and not verb.target):
        print(explain(verb.load(), command(name), verb.verbs) if verb.target else usage(name, verb))
        return 0 if wants_help else 2
    if not verb.target:
        print(printable(f"{command(name)}: {_no_verb(name, verb, rest)}"), file=sys.stderr)
        return 2
    return _run(name, verb, rest, on_loaded)


def _no_verb(name: Sequence[str], verb: Verb, rest: Sequence[str]) -> str:
    """Say what to type instead of a verb that there is not."""
    moved = MOVED.get((*name, rest[0]))
    if moved:
        import shlex

        return f"{rest[0]!r} is now `{command((moved, shlex.join(rest[1:]))).rstrip()}`"
    hint = "did you mean `rollmill train`?" if "=" in rest[0] else nearest(rest[0], verb.verbs)
    return f"no verb {rest[0]!r}; {f'{hint} ' if hint else ''}`{command(name)} --help` lists them"


def _run(name: Sequence[str], verb: Verb, words: list[str], on_loaded: Callable[[], None]) -> int:
    from rollmill.cli.words import call

    prog = command(name)
    function = verb.load()
    on_loaded()
    try:
        with _temporary_files(name, words) as rest:
            return call(function, rest, prog)
    except RollmillError as error:
        print(printable(f"{prog}: {_once(str(error)).rstrip()}{_hint(error, verb, words)}"), file=sys.stderr)
        return error.exit_code
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        refusal = refused_by_system(error)
        if not refusal:
            raise
        print(printable(f"{prog}: {refusal}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(printable(f"{prog}: {error if isinstance(error, Interrupted) else 'interrupted'}"), file=sys.stderr)
        return exit_code_of(error)
    except SystemExit as ending:  # of user code, which has not finished what was asked for
        where = traceback.extract_tb(ending.__traceback__)[-1]
        place = f"{where.filename}, line {where.lineno}"
        print(printable(f"{prog}: broken off: SystemExit({ending}) was raised in {place}"), file=sys.stderr)
        return 1


@contextlib.contextmanager
def _temporary_files(name: Sequence[str], words: list[str]) -> Iterator[list[str]]:
    """Obey ``run.temp_dir=FOLDER``, for every command; those without settings of a run have it taken from their words.

    Yields the words that are left.
    """
    found = [word for word in words if word.startswith(TEMP_DIR)]
    if not found or name[0] in OF_RUNS:
        yield words
        return
    from pathlib import Path

    from rollmill.core.process_scope import temporary_files_in

    folder = found[-1].removeprefix(TEMP_DIR)
    if not folder:
        raise ConfigError(f"{found[-1]}: which folder?")
    with temporary_files_in(Path(folder)):
        yield [word for word in words if word not in found]


def _hint(error: RollmillError, verb: Verb, words: Sequence[str]) -> str:
    """Name the verb below this one that may have been meant, if it has verbs of its own."""
    hint = nearest(words[0], verb.verbs) if words and isinstance(error, ConfigError) else ""
    return f"; {hint}" if hint else ""


def _once(message: str) -> str:
    """Return a message, without its traceback where the log has just shown that on the same console."""
    from rollmill.core.run_log import told_on_console  # a third of the time of `rollmill --help`

    return message.partition("\nTraceback (most recent call last)")[0] if told_on_console(message) else message


def _reader_is_gone() -> bool:
    """Return whether whoever read our output (head, less) has ended; any other broken pipe is a failure."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
