"""What earlier runs took, for the forecast of a plan."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.core.steps import position
from rollmill.launch.plan import Measured
from rollmill.launch.progress import folder_bytes, last_row, number_of

_MOST = 20


def measure(folders: Iterable[Path]) -> Measured:
    """Return medians over the runs in these folders (the first twenty that have metrics)."""
    rates, sizes, used = [], [], []
    for folder in folders:
        row = last_row(RunFolder(folder).metrics)
        if row is None:
            continue
        seconds = number_of(row, "time/seconds")
        if seconds:
            rates.append((position(row) or 0) / seconds)
        sizes.append(folder_bytes(folder))
        used.append(folder)
        if len(used) == _MOST:
            break
    if not used:
        return Measured()
    source = f"measured: {used[0]}" + (f" and {len(used) - 1} more" if len(used) > 1 else "")
    return Measured(statistics.median(rates) if rates else None, statistics.median(sizes), source)


def measure_like(run: Path) -> Measured:
    """Measure one run that the user names."""
    found = measure([run])
    if not found.source:
        raise ConfigError(f"--like {run}: not the folder of a run with metrics")
    return found
