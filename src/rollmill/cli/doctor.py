"""``rollmill doctor`` checks the machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollmill.cli.options import Json
from rollmill.core.terminal import drawing, printable
from rollmill.runs.doctor import Finding, check_machine, clean_leftovers, is_fit

_WORDS = {"good": ("ok", "green"), "warn": ("look", "yellow"), "bad": ("fault", "red")}


def doctor(run_dir: Path = Path("runs"), need: tuple[str, ...] = (), clean: bool = False, json_: Json = False) -> int:
    """Look whether this machine is fit for a run: display, GPU, cores, memory, leftovers, disk, limits, packages.

    The exit code is 1 if something would make a run fail, so a job can ask first:
    ``rollmill doctor --need vizdoom && rollmill train ...``.

    Args:
        run_dir: Where runs will be written.
        need: Extras the job needs, for example vizdoom atari; one that is missing is a fault instead of a remark.
        clean: Remove ViZDoom's leftovers in shared memory first; running games are not touched.
        json_: Print JSON.
    """
    removed = clean_leftovers() if clean else []
    findings = check_machine(run_dir, need)
    fit = is_fit(findings)
    if json_:
        print(json.dumps({"fit": fit, "removed": removed, "findings": [asdict(finding) for finding in findings]}))
        return 0 if fit else 1
    if removed:
        print(f"removed {len(removed)} leftovers: {', '.join(removed)}")
    _show(findings)
    return 0 if fit else 1


def _show(findings: list[Finding]) -> None:
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        word, colour = _WORDS[finding.level]
        text = Text(printable(finding.text))
        if finding.advice:
            text.append(f"\n-> {printable(finding.advice)}", style=colour)
        table.add_row(Text(word, colour), finding.topic, text)
    Console(file=drawing(sys.stdout)).print(table)
    counts = {level: sum(finding.level == level for finding in findings) for level in _WORDS}
    print(f"\n{counts['good']} ok, {counts['warn']} to look at, {counts['bad']} faults")
