"""The metrics of a run as a table of columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.fields import Array
from rollmill.core.text import nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

AXES = ("frames", "step", "time")
"""Columns that others are drawn over, the first that there is; seconds since 1970 are the last."""
SHOWN = ("episode/return", "eval/return", "return", "search/best", "validation/loss", "loss")
"""What ``plot`` draws where nothing is named: the first of these that there is, or that a name holds."""


class Metrics(dict[str, Array]):
    """Holds columns by name, one row for each report of a run; NaN where a row lacks a metric.

    ``metrics["episode/return"]`` is an array. ``docs/metrics.md`` explains every name.
    """

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Metrics:
        """Make columns of rows as ``metrics.jsonl`` has them; a value that was no number (``null``) is NaN."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = cls()
        for name in names:
            values = [math.nan if (value := row.get(name)) is None else value for row in rows]
            columns[name] = np.asarray(values, np.int64 if all(isinstance(v, int) for v in values) else np.float64)
        return columns

    @property
    def rows(self) -> int:
        """Count the rows."""
        return len(next(iter(self.values()), ()))

    @property
    def axis(self) -> str:
        """Name the column that counts how far the run was: ``frames`` or, in runs that have other units, ``step``."""
        return next((name for name in AXES if name in self), "")

    def __missing__(self, name: str) -> Array:
        hint = nearest(name, self)
        raise KeyError(f"there is no metric {name!r}{f'; {hint}' if hint else ''}")

    def __repr__(self) -> str:
        return f"<Metrics: {self.rows:,} rows of {len(self)} columns: {', '.join(self)}>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame, one column for each metric; needs pandas."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise MissingExtraError('to_pandas needs pandas: pip install "rollmill[notebook]"') from error
        return pd.DataFrame(dict(self))

    def plot(self, *names: str, x: str = "", ax: Axes | None = None) -> Axes:
        """Draw metrics over ``x`` (default: how far the run was); needs matplotlib.

        Without names the return is drawn, or the loss of runs that have none. ``ax``: draw there instead of in a new
        figure.
        """
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise MissingExtraError('plot needs matplotlib: pip install "rollmill[notebook]"') from error
        names = names or self._shown()
        axis = x or self.axis
        columns = {name: self[name] for name in (axis, *names)}
        if ax is None:
            ax = plt.figure(figsize=(7, 4)).add_subplot()
        for name in names:
            known = np.isfinite(columns[name])
            ax.plot(columns[axis][known], columns[name][known], label=name)
        ax.set_xlabel(axis)
        ax.set_ylabel(names[0] if len(names) == 1 else "")
        ax.grid(alpha=0.3)
        if len(names) > 1:
            ax.legend()
        return ax

    def _shown(self) -> tuple[str, ...]:
        for wanted in SHOWN:
            for name in self:
                if wanted in name:
                    return (name,)
        raise ConfigError(f"plot: name what to draw; there is: {', '.join(self) or 'nothing yet'}")
