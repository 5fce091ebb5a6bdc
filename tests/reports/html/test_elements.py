"""What is not markup by its type is escaped, wherever it stands."""

from xml.etree import ElementTree

from rollmill.reports.html.elements import Html, element, escape, join

HOSTILE = "<script>alert('x')</script>\"&"


def test_texts_and_attributes_are_escaped_and_markup_is_not() -> None:
    inner = element("b", HOSTILE)
    made = element("p", inner, HOSTILE, class_=HOSTILE, aria_label="x")
    root = ElementTree.fromstring(made)
    assert root.attrib == {"class": HOSTILE, "aria-label": "x"}
    assert [child.tag for child in root.iter()] == ["p", "b"]
    assert root[0].text == root[0].tail == HOSTILE
    assert "<script" not in made


def test_what_strings_make_of_markup_is_a_text_again() -> None:
    """A mistake shows tags on the page; it never lets a name become one."""
    bold = element("b", "x")
    for text in (bold + "y", f"{bold}", "".join([bold]), bold.lower()):
        assert not isinstance(text, Html)
        assert "<b>" not in join(text)
    assert join(bold, "<") == "<b>x</b>&lt;"


def test_attributes_that_say_nothing_are_left_out() -> None:
    assert element("img", src="data:,", alt="", width=None, height=0) == '<img src="data:," height="0"/>'
    assert element("span") == "<span></span>", "closed, as HTML knows no empty span"


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    assert escape("a\ud800\x00\x1bb") == "a\ufffd\ufffd\ufffdb"
