"""What every ``Sink`` promises, whatever it writes to."""

import io
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rollmill.core.protocols import Sink
from rollmill.monitor.console import ConsoleSink
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.tensorboard import TensorBoardSink

Make = Callable[[Path], Sink]
SINKS: dict[str, Make] = {
    "jsonl": lambda folder: JsonlSink(folder / "metrics.jsonl"),
    "tensorboard": lambda folder: TensorBoardSink(folder / "tb"),
    "panel": lambda folder: ConsoleSink("t", console=Console(file=io.StringIO(), force_terminal=True)),
    "lines": lambda folder: ConsoleSink("t", console=Console(file=io.StringIO(), force_terminal=False)),
}


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_takes_any_numbers_in_any_order_and_can_be_closed_twice(tmp_path: Path, name: str) -> None:
    sink = SINKS[name](tmp_path)
    sink.write(0, {})
    sink.write(10**13, {"episode/return": np.float64(1.0), "kl": math.nan, "entropy": -math.inf, "frames_per_s": 0})
    sink.write(5, {"new/name with spaces": 1.0})
    sink.close()
    sink.close()


@pytest.mark.parametrize("module", ["console", "jsonl", "metrics", "tensorboard", "usage", "wandb"])
def test_the_monitor_starts_without_torch(module: str) -> None:
    program = f"import sys, rollmill.monitor.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
