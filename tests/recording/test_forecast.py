import pytest

from rollmill.recording.forecast import Forecast, RunSize, Sample, describe, forecast
from rollmill.recording.settings import RecordingSettings

RUN = RunSize(steps=100_000, frames_per_step=4, segments_per_batch=5)
SAMPLE = Sample(steps=500, bytes_per_step=8000.0, episode_length=60.0)


def of(**settings: object) -> Forecast:
    return forecast(RecordingSettings(**settings), RUN, SAMPLE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"keep": "all"}, 100_000),
        ({"keep": "one"}, 20_000),
        ({"keep": "rotate"}, 20_000),
        ({"keep": "every", "every": 4}, 25_000),
        ({"keep": "episodes", "every": 4}, 25_000),
        ({"keep": "best", "every": 50}, 2_000),
        ({"keep": "all", "when": "last:25%"}, 25_000),
        ({"keep": "all", "when": "last:40_000"}, 10_000),
        ({"keep": "one", "when": "after:200000"}, 10_000),
        ({"keep": "off"}, 0),
    ],
)
def test_rows_and_bytes(settings: dict[str, object], rows: int) -> None:
    found = of(**settings)
    assert (found.rows, found.bytes) == (rows, rows * 8000)


def test_files_and_budget() -> None:
    found = of(keep="all", budget_gb=0)
    assert found.files == 1 + 2 * 6  # 0.8 GB in shards of 128 MiB
    assert found.budget_reached_at == 1
    found = of(keep="all", budget_gb=0.2)
    assert found.stored_bytes == 200_000_000
    assert found.budget_reached_at == 0.25
    assert found.files == 1 + 2 * 8
    assert of(keep="off").files == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"keep": "all", "budget_gb": 0.2}, "the budget of 0.2 GB is reached after 25% of it, then recording stops"),
        ({"keep": "all", "budget_gb": 0.2, "at_budget": "thin"}, "then it is thinned"),
        ({"keep": "all", "budget_gb": 0.2, "at_budget": "ring"}, "then the oldest is dropped"),
        ({"keep": "one"}, "about 20,000 rows, 160 MB (8,000 bytes per row); budget 10 GB; about 5 files"),
        ({"keep": "one", "budget_gb": 0}, "no budget"),
        ({"keep": "all", "min_return": 3.0}, "at most 100,000 rows"),
        ({"keep": "all", "when": "spread", "budget_gb": 0.1}, "so that 100 MB are used"),
    ],
)
def test_words(settings: dict[str, object], text: str) -> None:
    chosen = RecordingSettings(**settings)  # type: ignore[arg-type]
    assert text in describe(forecast(chosen, RUN, SAMPLE), chosen)


def test_a_run_without_end() -> None:
    settings = RecordingSettings(keep="all")
    found = forecast(settings, RunSize(0, 4, 5), SAMPLE)
    assert found.rows == 250_000
    assert "250,000 rows per million frames" in describe(found, settings)
