import pytest

from rollmill.reports.html.tables import breakable, number, table


def test_names_are_broken_between_their_words_and_only_where_they_are_long() -> None:
    assert breakable("learning.learning_rate") == "learning.learning_rate"
    assert breakable("recording.queue_segments_at_once") == "recording.<wbr/>queue_<wbr/>segments_<wbr/>at_<wbr/>once"
    assert breakable("short words only, and many of them") == "short words only, and many of them"
    assert breakable("x" * 90) == "<wbr/>".join(["x" * 40, "x" * 40, "x" * 10])
    assert breakable("<&" * 13).replace("<wbr/>", "") == "&lt;&amp;" * 13


def test_columns_of_text_wrap_and_metrics_do_not() -> None:
    text = table(("a", "b", "c"), [("n", "words", "1")], left=2)
    assert '<td class="l name">n</td><td class="l">words</td><td>1</td>' in text


def test_a_table_needs_no_head() -> None:
    assert "<thead>" not in table((), [("a", "b")], left=2)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345.6, "12,346"), (0.012345, "0.01235"), (-2.5, "-2.5"), (1e-9, "1e-09"), (3e20, "3e+20")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
