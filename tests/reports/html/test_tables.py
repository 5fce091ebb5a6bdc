from rollmill.reports.html.tables import breakable, table


def test_names_are_broken_between_their_words_and_only_where_they_are_long() -> None:
    assert breakable("learning.learning_rate") == "learning.learning_rate"
    assert breakable("recording.queue_segments_at_once") == "recording.<wbr/>queue_<wbr/>segments_<wbr/>at_<wbr/>once"
    assert breakable("short words only, and many of them") == "short words only, and many of them"
    assert breakable("x" * 90) == "<wbr/>".join(["x" * 40, "x" * 40, "x" * 10])
    assert breakable("<&" * 13).replace("<wbr/>", "") == "&lt;&amp;" * 13


def test_columns_of_text_wrap_and_figures_do_not() -> None:
    text = table(("a", "b", "c"), [("n", "words", "1")], left=2)
    assert '<td class="l name">n</td><td class="l">words</td><td>1</td>' in text
