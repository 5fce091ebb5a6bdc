"""Lists the tests that take longest, from what ``pytest --durations=0`` has printed: what ``make test`` leaves out.

    make test-all PYTEST_WORDS=--durations=0 > durations.txt
    python tools/slow_tests.py durations.txt

``tests/slow.txt`` gets the names of the slowest tests that together take ``SHARE`` of the time. Which tests these are
depends little on the machine, their seconds do.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

SHARE = 0.6
LIST = Path(__file__).resolve().parents[1] / "tests" / "slow.txt"
LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(tests/\S+?::\w+)")


def slowest(lines: Iterable[str], share: float = SHARE) -> list[str]:
    """Names of the tests, parameters taken together, in the order of the alphabet."""
    seconds: Counter[str] = Counter()
    for line in lines:
        if found := LINE.match(line):
            seconds[found[2]] += float(found[1])
    wanted, chosen = share * sum(seconds.values()), list[str]()
    for name, taken in seconds.most_common():
        if wanted <= 0:
            break
        chosen.append(name)
        wanted -= taken
    return sorted(chosen)


if __name__ == "__main__":
    names = slowest(Path(sys.argv[1]).read_text().splitlines())
    LIST.write_text("".join(f"{name}\n" for name in names))
    print(f"{LIST}: {len(names)} tests")
