"""The notebooks of the examples, run in a kernel as a user runs them; and what a kernel does to a training."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from running import ROOT

SECONDS = 300


def text_of(cell: Any) -> str:
    """All that is shown below a cell."""
    parts = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "\n".join(map("".join, parts))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # packages that other tests import set one that shows nothing
    return tmp_path


def run_cells(folder: Path, *cells: str) -> list[Any]:
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return list(notebook.cells)


def test_the_first_steps(folder: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    trained = next(cell for cell in cells if "rollmill.train" in cell.source)
    line, result = trained.outputs
    assert line.output_type == "display_data"
    assert "frames (100%)" in line.data["text/plain"]
    assert "reached stop.frames=20_000" in line.data["text/plain"]
    assert "finished (reached stop.frames=20_000)" in result.data["text/plain"]
    evaluated = next(cell for cell in cells if "rollmill.evaluate" in cell.source)
    assert "over 20 episodes, random play" in text_of(evaluated)
    streams = [o for cell in cells for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"]
    assert streams == [], "nothing red"
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs), "a plot"


def test_vizdoom_in_ten_minutes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short: every cell runs, whatever is learnt in so few updates."""
    pytest.importorskip("vizdoom")
    monkeypatch.setenv("ROLLMILL_SHORT", "1")
    notebook = nbformat.read(ROOT / "examples" / "vizdoom.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    cells = {cell.source: cell for cell in notebook.cells if cell.cell_type == "code"}
    trained = next(cell for source, cell in cells.items() if "rollmill.train(" in source)
    assert "finished (reached stop.frames=12_000)" in text_of(trained)
    film = next(cell for source, cell in cells.items() if "Video(played" in source)
    assert any("data:video/mp4;base64" in o.get("data", {}).get("text/html", "") for o in film.outputs)
    assert {path.name for path in (folder / "runs" / "default").iterdir()} >= {"agent", "dt", "bc"}
    last = notebook.cells[-2]
    assert any("image/png" in o.get("data", {}) for o in last.outputs), "a plot of all returns"


def test_warnings_are_shown_and_errors_once(folder: Path) -> None:
    shown, failed = run_cells(
        folder,
        "import logging, rollmill\n"
        "class Warner(rollmill.Observer):\n"
        "    def on_start(self, run): logging.getLogger('rollmill').warning('look out')\n"
        "settings = dict(frames=500, sampling={'mode': 'serial'}, learning={'batch_size': 256})\n"
        "rollmill.train('toy_target', observers=[Warner()], name='a', **settings)",
        "class Bad(rollmill.Observer):\n"
        "    def on_start(self, run): raise ValueError('this is bad')\n"
        "try:\n"
        "    rollmill.train('toy_target', observers=[Bad()], name='b', **settings)\n"
        "except rollmill.RollmillError as error:\n"
        "    print(type(error).__name__)",
    )
    assert text_of(shown).count("look out") == 1
    assert "ObserverError" in text_of(failed)
    assert "this is bad" not in text_of(failed), "what is raised is not shown by the log as well"


def test_the_stop_button_ends_a_training_in_order(folder: Path) -> None:
    notebook = new_notebook(
        cells=[
            new_code_cell("import rollmill\nrun = rollmill.train('toy_target', frames=10**9, sampling={'workers': 1})"),
            new_code_cell("print(run.state, run.reason)\nimport signal; print(signal.getsignal(signal.SIGINT))"),
        ]
    )
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    metrics = folder / "runs" / "default" / "toy_target-s0" / "metrics.jsonl"

    def press() -> None:
        kernel = psutil.Process()
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not metrics.exists():
            time.sleep(0.1)
        time.sleep(0.5)
        for child in kernel.children():
            if "ipykernel" in " ".join(child.cmdline()):
                child.send_signal(2)

    finger = threading.Thread(target=press)
    finger.start()
    client.execute()
    finger.join()
    assert "interrupted SIGINT received" in text_of(notebook.cells[1])
    assert "default_int_handler" in text_of(notebook.cells[1])
