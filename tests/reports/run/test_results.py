import json
from dataclasses import asdict

import pytest

from rollmill.reports.run.results import Results, Row, data_rows, is_monotone

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
    assert text[-1] == "of behaviour: 0 % is random play, 100 % is behaviour (the run that made the data)"
    assert text[-1] in results.markdown()
    assert results.to_dict()["rows"][2]["standard_error"] is None
    assert [row.policy for row in results.rows[-2:]] == ["data", "data, best 10%"]
    assert results.rows[-1].mean == 3


def test_what_stands_below_the_table() -> None:
    noted = Results("x", ROWS[:3], notes=("dt: weights of update 96 of 400",))
    assert noted.sentences() == ["dt: weights of update 96 of 400"], "no share without behaviour and random"
    assert noted.text().splitlines()[-1] == "dt: weights of update 96 of 400"


def test_a_target_that_cloning_comes_nearer_to_is_named() -> None:
    steady = Row.of("bc", [57.0, 58.0, 59.0])
    low = Row.of("dt", [6.0, 7.0, 8.0], target=40.0)
    high = Row.of("dt", [79.0, 80.0, 81.0], target=85.0)
    near = Row.of("dt", [50.0, 60.0, 64.0], target=70.0)
    found = Results(
        "x", [low, near, high, steady, Row.of("random", [-100.0]), Row.of("data", [40.0, 40.0])]
    ).sentences()
    assert found == ["asked for 40, dt brings 7: bc, which is not asked, comes nearer with 58"]
    assert Results("x", [low, high]).sentences() == [], "nothing to compare with"


def test_last_weights_that_play_better_are_named() -> None:
    rows = [
        *(Row.of("dt", [40.0, 42.0], target=85.0), Row.of("dt, last", [75.0, 76.0], target=85.0)),
        *(Row.of("dt", [40.0, 60.0], target=40.0), Row.of("dt, last", [45.0, 65.0], target=40.0)),
    ]
    assert Results("x", rows).sentences() == [
        "asked for 85, the last weights bring more (75.5) than those with the lowest held-out loss (41)"
    ]
    clones = [Row.of("bc", [1.0, 1.0]), Row.of("bc, last", [5.0, 5.0]), Row.of("dt", [9.0, 9.0], target=5.0)]
    assert len(Results("x", clones).sentences()) == 1, "and are no clone of their own"


def test_results_are_read_back() -> None:
    results = Results("title", [*ROWS, *data_rows([1.0, 2.0])], notes=("one",))
    again = Results.from_dict(json.loads(json.dumps(results.to_dict())))
    assert again.text() == results.text()
    old = {"title": "t", "rows": [asdict(ROWS[0])]}  # as version 0.1 has written it
    assert Results.from_dict(old).table() == Results("t", ROWS[:1]).table()


def test_the_plot_has_a_line_per_policy_that_is_asked() -> None:
    plot = Results("x", ROWS).plot()
    assert plot.count("<svg") == 2, "for wide pages and for narrow ones"
    assert plot.count('class="band c0"') == 2
    assert "<span>dt</span>" in plot
    assert ">behaviour<" in plot
    assert Results("x", ROWS[2:]).plot() == ""


def test_policies_that_are_asked_have_colours_of_their_own() -> None:
    both = [Row.of(name, [1.0, 2.0], target) for name in ("dt", "dt, last") for target in (1.0, 2.0)]
    plot = Results("x", both).plot()
    assert 'class="line c1"' in plot
    assert "<span>dt</span>" in plot
    assert "<span>dt, last</span>" in plot


def test_monotone_means_that_asking_for_more_brings_more() -> None:
    assert is_monotone(ROWS)
    assert not is_monotone([Row.of("dt", [3.0], 1.0), Row.of("dt", [2.0], 2.0)])
    assert is_monotone([Row.of("dt", [3.0], 1.0), Row.of("dt", [2.9], 2.0)], slack=0.2)
