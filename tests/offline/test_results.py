import pytest

from rollmill.offline.results import Results, Row, data_rows, is_monotone

ROWS = [
    Row.of("dt", [8.0, 10.0], target=10.0, length=4.0),
    Row.of("dt", [2.0, 4.0], target=5.0),
    Row.of("bc", [5.0]),
    Row.of("behaviour", [10.0, 10.0]),
    Row.of("random", [0.0, 2.0]),
]


def test_a_row_is_mean_and_standard_error() -> None:
    row = ROWS[0]
    assert (row.mean, row.standard_error, row.median, row.min, row.max) == (9, 1, 9, 8, 10)
    assert ROWS[2].standard_error is None


def test_shares_lie_between_random_and_behaviour() -> None:
    results = Results("x", ROWS)
    assert [results.share(row) for row in results.rows] == pytest.approx([8 / 9, 2 / 9, 4 / 9, 1, 0])
    assert Results("x", ROWS[:3]).share(ROWS[0]) is None


def test_there_is_no_share_of_a_difference_that_may_be_chance() -> None:
    near = [ROWS[0], Row.of("behaviour", [0.0, 3.0]), ROWS[4]]
    assert Results("x", near).share(ROWS[0]) is None
    worse = [ROWS[0], Row.of("behaviour", [-9.0, -9.0]), ROWS[4]]
    assert Results("x", worse).share(ROWS[0]) is None


def test_the_table_as_text_markdown_and_values() -> None:
    results = Results("title", [*ROWS, *data_rows([1.0, 2.0, 3.0])])
    text = results.text().splitlines()
    assert text[0] == "title"
    assert text[2].split() == ["dt", "10", "9", "1", "89", "%", "9", "8", "10", "4.0", "2"]
    assert results.markdown().splitlines()[2].startswith("| dt | 10 | 9 | 1 | 89 % |")
    assert results.to_dict()["rows"][2]["standard_error"] is None
    assert [row.policy for row in results.rows[-2:]] == ["data", "data, best 10%"]
    assert results.rows[-1].mean == 3


def test_the_plot_has_a_line_per_policy_that_is_asked() -> None:
    plot = Results("x", ROWS).plot()
    assert plot.startswith("<svg")
    assert plot.count('class="band"') == 1
    assert ">behaviour<" in plot
    assert Results("x", ROWS[2:]).plot() == ""


def test_monotone_means_that_asking_for_more_brings_more() -> None:
    assert is_monotone(ROWS)
    assert not is_monotone([Row.of("dt", [3.0], 1.0), Row.of("dt", [2.0], 2.0)])
    assert is_monotone([Row.of("dt", [3.0], 1.0), Row.of("dt", [2.9], 2.0)], slack=0.2)
