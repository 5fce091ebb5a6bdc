"""``report.html`` of a whole world model: stages, reconstructions, dreams, curves, and what the controller is worth."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.core.errors import MissingExtraError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import duration_text, number_text
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.world_dream import film_dreams
from rollmill.runs.world_page import curve, reconstructions, write_page
from rollmill.store.page.svg import escape
from rollmill.store.page.tables import NONE, table
from rollmill.worldmodel.sequence import DYNAMICS_FILE

log = logging.getLogger("rollmill")

FILM = "dreams.mp4"
MAX_CURVES = 6
MAX_FACTS = 5


def write_world_page(
    out: Path, records: Mapping[str, Mapping[str, Any]], folders: Mapping[str, str], film: bool
) -> Path:
    """Write the page from what the stages have left in ``out``."""
    seconds = sum(record["seconds"] for record in records.values())
    sections = [
        ("What it is worth", _score(records["controller"]["result"])),
        ("Stages", _stages(records)),
        ("Reconstructions", reconstructions(out / folders["vae"])),
        ("Dreams", _film(out, folders) if film else ""),
        ("Controller", _plots(out / folders["controller"])),
        ("Dynamics", _curves(out / folders["dynamics"])),
        ("Encoder", _curves(out / folders["vae"])),
    ]
    about = f"{out}; {duration_text(seconds)} in all stages together"
    return write_page(out / "report.html", f"World model {out.name}", about, sections)


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


def _stages(records: Mapping[str, Mapping[str, Any]]) -> str:
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


def _film(out: Path, folders: Mapping[str, str]) -> str:
    """Dreams beside what really happened: from left to right the picture, its reconstruction, the dream."""
    path = out / FILM
    try:
        film_dreams(
            *(out / folders["encode"], out / folders["vae"], out / folders["dynamics"] / DYNAMICS_FILE, path),
            raw_store=out / folders["collect"],
        )
    except MissingExtraError as error:
        log.warning("no film of dreams: %s", error)
        return f'<p class="note">{escape(error)}</p>'
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return (
        f'<figure class="card shown"><video controls="controls" loop="loop" muted="muted" '
        f'src="data:video/mp4;base64,{data}"></video><figcaption>Left: what was seen. Middle: what the encoder makes '
        "of it. Right: the model goes on alone, with the same actions, from where the border changes "
        "colour.</figcaption></figure>"
    )


def _plots(folder: Path) -> str:
    """The plots that the search has drawn itself."""
    shown = []
    for path in sorted(folder.glob("*.svg")):
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        name = escape(path.stem.replace("_", " "))
        shown.append(
            f'<figure class="card shown"><img alt="{name}" src="data:image/svg+xml;base64,{data}"/>'
            f"<figcaption>{name}</figcaption></figure>"
        )
    return f'<div class="grid3">{"".join(shown)}</div>' if shown else ""


def _curves(folder: Path) -> str:
    """The first metrics that were learnt and validated, over optimizer steps."""
    metrics = RunFolder(folder).metrics
    rows = list(read_jsonl(metrics)) if metrics.is_file() else []
    names = [name for name in (rows[-1] if rows else {}) if name.startswith(("learn/", "validation/"))]
    drawn = [curve(rows, (name,), name) for name in names if "rate" not in name and "norm" not in name]
    found = [text for text in drawn if text][:MAX_CURVES]
    return f'<div class="grid3">{"".join(found)}</div>' if found else ""
