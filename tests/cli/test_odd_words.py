"""What no verb expects on its command line is refused for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.cli.words import call
from rollmill.core.errors import ConfigError


def verb(
    overrides: tuple[str, ...],
    place: Path = Path("here"),
    /,
    budget_gb: float | None = None,
    shares: tuple[float, ...] = (),
    count: int = 1,
    json_: bool = False,
) -> int:
    """A verb.

    Args:
        place: Where.
        budget_gb: How much.
        shares: Of what.
        count: How many.
    """
    print(overrides, place, budget_gb, shares, count, json_)
    return 7


def run(*words: str) -> int:
    return call(verb, ("a=1", *words), "rollmill verb")


def test_it_is_called_and_its_output_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x\x1b", "--budget-gb", "2.5", "--shares", "1", "2", "--count", "-3") == 7
    assert capsys.readouterr().out == "('a=1',) x\\x1b 2.5 (1.0, 2.0) -3 False\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--budget-gb nan", "--budget-gb nan: a finite number is expected"),
        ("--budget-gb -inf", "--budget-gb -inf: a finite number is expected"),
        ("--budget-gb 1e999", "--budget-gb 1e999: a finite number is expected"),
        ("--shares 1 nan", "--shares nan: a finite number is expected"),
        ("--count 9223372036854775808", "--count 9223372036854775808: 64 bits do not hold it"),
        ("--budget-gb=", "--budget-gb: the value is empty"),
    ],
)
def test_odd_numbers(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        run(*words.split())


def test_an_empty_word_is_no_path() -> None:
    with pytest.raises(ConfigError, match=r"^--budget-gb: a word of the command line is empty$"):
        run("--budget-gb", "")
    with pytest.raises(ConfigError, match=r"^a word of the command line is empty$"):
        run("")
