"""``report.html`` of a whole world model: stages, reconstructions, dreams, curves, and what the controller is worth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.core.errors import RunFolderError
from rollmill.core.opening import read_json
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import duration_text, number_text
from rollmill.monitor.jsonl import read_jsonl
from rollmill.reports.html.tables import NONE, table
from rollmill.runs.world.page import figure, metric_curves, reconstructions, search_plots, write_sections
from rollmill.runs.world.settings import FOLDERS, RECORDS, STAGES

FILM = "dreams.mp4"
MAX_FACTS = 5

Records = Mapping[str, Mapping[str, Any]]


def write_world_page(out: Path, page: Path | None = None) -> Path:
    """Write the page from what the stages have left in ``out``."""
    records = read_records(out)
    controller = records.get("controller", {})
    sections = [
        ("What it is worth", _score(controller.get("result", {}))),
        ("Stages", _stages(records)),
        ("Reconstructions", reconstructions(out / FOLDERS["vae"])),
        ("Dreams", _film(out / FILM, out)),
        ("Controller", search_plots(out / FOLDERS["controller"])),
        ("Dynamics", _curves(out / FOLDERS["dynamics"])),
        ("Encoder", _curves(out / FOLDERS["vae"])),
    ]
    seconds = sum(record["seconds"] for record in records.values())
    about = f"{out}; {duration_text(seconds)} in all stages together"
    return write_sections(page or out / "report.html", "world", f"World model {out.absolute().name}", about, sections)


def read_records(out: Path) -> dict[str, dict[str, Any]]:
    """What every stage that was begun has written down about itself, in their order; the report apart."""
    found = {}
    for name in STAGES[:-1]:
        path = out / RECORDS / f"{name}.json"
        try:
            found[name] = read_json(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
    return found


def _score(result: Mapping[str, Any]) -> str:
    if result.get("final_return") is None:
        return ""
    rows = [
        ("return (best controller, episodes that nothing was chosen by)", number_text(result["final_return"])),
        ("standard deviation", number_text(result["final_std"])),
        ("episodes", f"{result['final_episodes']:,}"),
        ("generations", f"{result['generations']:,}"),
        ("steps in environments", f"{result['env_steps']:,}"),
    ]
    return table(("figure", "value"), rows, left=1)


def _stages(records: Records) -> str:
    rows = [
        (name, record["state"] or NONE, duration_text(record["seconds"]), _facts(record["result"]))
        for name, record in records.items()
    ]
    return table(("stage", "state", "time", "outcome"), rows, left=4)


def _facts(result: Mapping[str, Any]) -> str:
    plain = [(name, value) for name, value in result.items() if type(value) in (int, float) and value == value]
    shown = [f"{name.rpartition('/')[2]} {_text(value)}" for name, value in plain[:MAX_FACTS]]
    return ", ".join(shown)


def _text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else number_text(value)


def _film(path: Path, out: Path) -> str:
    """Dreams beside what really happened: from left to right the picture, its reconstruction, the dream."""
    if not path.is_file():
        return ""
    caption = (
        "Left: what was seen. Middle: what the encoder makes of it. Right: the model goes on alone, with the same "
        "actions, from where the border changes colour."
    )
    return figure(path, "video/mp4", out, caption)


def _curves(folder: Path) -> str:
    metrics = RunFolder(folder).metrics
    return metric_curves(read_jsonl(metrics)) if metrics.is_file() else ""
