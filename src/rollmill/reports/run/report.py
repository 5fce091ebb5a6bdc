"""``report.html`` of a run of any kind: one page without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollmill.core.config.old_names import read_saved
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import RunKind, run_kind
from rollmill.reports.html.document import Kind, write_page
from rollmill.reports.html.elements import Html
from rollmill.reports.run.facts import RunFacts, read_run
from rollmill.reports.run.offline import render_offline
from rollmill.reports.run.online import render_online
from rollmill.reports.run.world import render_stage, render_world

_PAGES: dict[RunKind, tuple[Kind, Callable[[RunFacts], Html]]] = {
    "online": ("run", render_online),
    "offline": ("offline", render_offline),
    "world": ("world", render_world),
    "encoder": ("encoder", lambda facts: render_stage(facts, "encoder")),
    "dynamics": ("dynamics", lambda facts: render_stage(facts, "dynamics")),
    "controller": ("controller", lambda facts: render_stage(facts, "controller")),
}


def write_run_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page about the run in ``folder`` and return its place: its ``report.html``, unless another kind of page
    has that name. An online training, an offline one, a world model and its stages have a page each.

    Raises RunFolderError when there is no run, or where the page cannot be written.
    """
    kind, render = _PAGES[_kind(folder)]
    return write_page(out or folder / "report.html", kind, render(read_run(folder)))


def _kind(folder: Path) -> RunKind:
    """Return the kind that the saved settings say; a run without readable ones counts as online; its page says so."""
    try:
        return run_kind(read_saved(RunFolder(folder).config))
    except ConfigError:
        return "online"
