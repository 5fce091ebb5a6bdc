"""``report.html`` of a run of any kind: one page without scripts and without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import RunKind, run_kind
from rollmill.core.yaml_io import read_mapping
from rollmill.reports.html.document import write_page
from rollmill.reports.run.facts import read_run
from rollmill.reports.run.page import render_run


def write_run_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page about the run in ``folder`` and return its place: its ``report.html``, unless another kind of page
    has that name. An online training, an offline one, a world model and its stages have a page each.

    RunFolderError when there is no run.
    """
    kind = _kind(folder)
    if kind == "world":
        from rollmill.runs.world.results import write_world_page

        return write_world_page(folder, out)
    if kind in ("encoder", "dynamics", "controller"):
        from rollmill.runs.world.page import write_stage_page

        return write_stage_page(folder, kind, out)
    facts, page = read_run(folder), out or folder / "report.html"
    try:
        if kind == "offline":
            from rollmill.runs.offline.page import render_offline

            return write_page(page, "offline", render_offline(facts))
        return write_page(page, "run", render_run(facts))
    except OSError as error:
        raise RunFolderError(f"{page}: the report cannot be written: {error.strerror or error}") from error


def _kind(folder: Path) -> RunKind:
    """What the saved settings say; a folder without readable ones counts as an online run, whose page names that."""
    try:
        return run_kind(read_mapping(RunFolder(folder).config).data)
    except ConfigError:
        return "online"
