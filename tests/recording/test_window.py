import pytest

from rollmill.recording.window import SLICES, Window


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("run", 0),
        ("last:300", 700),
        ("last:3e2", 700),
        ("last:1_000", 0),
        ("last:5000", 0),
        ("last:20%", 800),
        ("last:12.5%", 875),
        ("after:400", 400),
        ("spread", 0),
    ],
)
def test_where_it_begins(text: str, start: int) -> None:
    window = Window.parse(text)
    assert window.start(1000) == start
    assert window.share(1000) == pytest.approx(1 - start / 1000)
    if window.kind != "spread":
        assert [frames for frames in range(1000) if window.is_open(frames, 1000)] == list(range(start, 1000))


@pytest.mark.parametrize("text", ["", "last", "last:", "last:-3", "last:120%", "last:0%", "after:10%", "first:3", "5"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="when="):
        Window.parse(text)


def test_which_need_a_limit() -> None:
    needs = {text: Window.parse(text).needs_limit for text in ("run", "after:5", "last:5", "last:5%", "spread")}
    assert needs == {"run": False, "after:5": False, "last:5": True, "last:5%": True, "spread": True}


def test_a_run_without_limit_is_whole() -> None:
    assert Window.parse("after:10").share(0) == 1.0


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0])
def test_spread_fills_the_budget_evenly(rate: float) -> None:
    """A recorder that writes ``rate`` bytes per frame, kept open by the window alone."""
    limit, usable, used = 100_000, 50_000, 0.0
    window, kept = Window.parse("spread"), [0.0] * 10
    for frame in range(0, limit, 10):
        if window.is_open(frame, limit, int(used), usable):
            used += 10 * rate
            kept[frame * 10 // limit] += 10 * rate
    assert used <= usable * (1 + 1 / SLICES)
    assert used >= 0.98 * min(usable, rate * limit)
    assert max(kept) <= 1.2 * min(kept), "all tenths of the run appear alike"
