"""The ``rollmill`` command: finds the verb, runs it, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong configuration or command line, 128 + n ended by signal n.
Verbs are imported when they are used, so that ``rollmill --help`` and a typing error answer at once.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence

from rollmill import __version__
from rollmill.core.errors import RollmillError, exit_code_of
from rollmill.core.exits import leave
from rollmill.core.run_log import told_on_console
from rollmill.core.terminal import printable
from rollmill.core.text import moved, nearest, usage_of
from rollmill.runs.out_of_memory import refused_by_system
from rollmill.runs.stopping import CommandSignals

VERBS: dict[str, tuple[str, str]] = {
    "train": ("rollmill.cli.train:train", "train an agent"),
    "eval": ("rollmill.cli.evaluate:evaluate", "evaluate policies of any kind side by side, video them"),
    "export": ("rollmill.cli.export:export", "write a trained policy for other programs (ONNX, safetensors, torch)"),
    "watch": ("rollmill.cli.watch:watch", "watch an agent play, in a window, the browser or the terminal"),
    "collect": ("rollmill.cli.collect:collect", "write episodes of a policy into a store"),
    "data": ("rollmill.cli.data.verbs:data", "look at stores, check, repair, merge, split and convert them"),
    "offline": ("rollmill.cli.offline:offline", "learn a policy from a store"),
    "world": ("rollmill.cli.world.verbs:world", "world models: encoder, latents, dynamics, controller, dream"),
    "bench": ("rollmill.cli.bench:bench", "measure speed"),
    "launch": ("rollmill.cli.launch:launch", "plan, start, watch and cancel many runs"),
    "runs": ("rollmill.cli.runs:runs", "list runs, compare two of them, remove some"),
    "tb": ("rollmill.cli.tb:tb", "one TensorBoard over the runs that match"),
    "diary": ("rollmill.cli.diary:diary", "the history of an experiment's runs"),
    "report": ("rollmill.cli.report:report", "curves, best settings and importance of an experiment"),
    "envs": ("rollmill.cli.envs:envs", "list the environments, check one"),
    "config": ("rollmill.cli.info:config", "explain the keys of the configuration"),
    "doctor": ("rollmill.cli.doctor:doctor", "look whether this machine is fit for a run"),
}
NESTED = ("data", "envs", "launch", "runs", "world")
"""Verbs with verbs of their own; their function takes all words."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Without ``arguments``, as the console script calls it, this is the life of the process: it also ends here, whatever
    threads and children user code has left. Under a debugger or a profiler it returns: they want to see the end.
    """
    if arguments is None and sys.gettrace() is None and sys.getprofile() is None:
        leave(_live())
    return _run_command(list(sys.argv[1:] if arguments is None else arguments))


def _live() -> int:
    """The command line of this process, to its exit code."""
    if sys.stderr is not None:
        faulthandler.enable()  # in serial mode, a simulator that crashes takes this process along: with its stack
    words = sys.argv[1:]
    signals = CommandSignals(" ".join(["rollmill", *words[:1]]))
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
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"rollmill {__version__}")
        return 0
    if words[0] == "offline-eval":
        print(f"rollmill offline-eval is part of rollmill eval: {moved('rollmill eval', words[1:])}", file=sys.stderr)
        return 2
    if words[0] not in VERBS:
        print(f"rollmill: no verb {words[0]!r}{_hint(words[0])}\n\n{usage()}", file=sys.stderr)
        return 2
    return _run(words[0], words[1:], on_loaded)


def usage() -> str:
    return usage_of("rollmill", VERBS)


def _run(verb: str, words: list[str], on_loaded: Callable[[], None]) -> int:
    from rollmill.cli.words import call

    function = _load(verb)
    on_loaded()
    try:
        if verb in NESTED:
            return function(tuple(words))
        return call(function, words, f"rollmill {verb}")
    except RollmillError as error:
        print(printable(f"rollmill {verb}: {_once(str(error)).rstrip()}"), file=sys.stderr)
        return error.exit_code
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        refusal = refused_by_system(error)
        if not refusal:
            raise
        print(printable(f"rollmill {verb}: {refusal}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"rollmill {verb}: interrupted", file=sys.stderr)
        return exit_code_of(error)
    except SystemExit as ending:
        if _is_parser(ending):
            raise
        where = traceback.extract_tb(ending.__traceback__)[-1]
        place = f"{where.filename}, line {where.lineno}"
        print(printable(f"rollmill {verb}: broken off: SystemExit({ending}) was raised in {place}"), file=sys.stderr)
        return 1


def _once(message: str) -> str:
    """A message, without its traceback where the log has just shown that on the same console."""
    return message.partition("\nTraceback (most recent call last)")[0] if told_on_console(message) else message


def _is_parser(ending: SystemExit) -> bool:
    """Whether it is about the command line; anybody else who calls ``sys.exit`` has not finished what was asked for."""
    *_, (frame, _) = traceback.walk_tb(ending.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("tyro", "argparse")


def _reader_is_gone() -> bool:
    """Whether whoever read our output (head, less) has ended; any other broken pipe is a failure."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _load(verb: str) -> Callable[..., int]:
    module, _, name = VERBS[verb][0].partition(":")
    found: Callable[..., int] = getattr(importlib.import_module(module), name)
    return found


def _hint(word: str) -> str:
    hint = nearest(word, VERBS)
    return f"; {hint}" if hint else ""


if __name__ == "__main__":
    sys.exit(main())
