"""Counts how large the house is: ``python tools/house.py [OTHER_CHECKOUT ...]`` prints a table, this tree first.

A number is no verdict: it says where to look, and whether a change made the tree smaller.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
LONG_MODULE, LONG_FUNCTION = 400, 60


def count(root: Path) -> dict[str, str]:
    """What a checkout has, by what is counted."""
    source = root / "src"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((source / "rollmill").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    modules = [path for path in trees if path.name != "__init__.py"]
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    imports = sum(len(import_lines(tree)) for tree in trees.values())
    names = {".".join(path.relative_to(source).with_suffix("").parts): trees[path] for path in modules}
    alone = sum(n == 1 for n in importers(names, "rollmill.runs.").values())
    long = sum(size > LONG_FUNCTION for size in sizes(trees.values()))
    return {
        "modules": f"{len(modules)}",
        "source lines": f"{sum(lines.values()):,}",
        "import lines per module, mean": f"{imports / len(modules):.1f}",
        "files in `runs/` with a single importer": f"{alone}",
        f"modules above {LONG_MODULE} lines": f"{sum(lines[path] > LONG_MODULE for path in modules)}",
        f"functions above {LONG_FUNCTION} lines": f"{long}",
    }


def import_lines(tree: ast.Module) -> set[int]:
    """Lines that imports take, those of one that goes over several included."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def importers(modules: Mapping[str, ast.Module], room: str) -> Counter[str]:
    """How many modules import each one of a room; nobody imports what is not in it."""
    found: Counter[str] = Counter()
    for name, tree in modules.items():
        found.update({target for target in imported(tree) if target in modules and target.startswith(room)} - {name})
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Everything that imports name, as modules: of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sizes(trees: Iterable[ast.Module]) -> Iterator[int]:
    """Lines of every function, its decorators left out."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1


def main(others: list[str]) -> None:
    places = [HERE, *map(Path, others)]
    counts = [count(place) for place in places]
    print(f"| | {' | '.join(str(place) if k else 'this tree' for k, place in enumerate(places))} |")
    print(f"|---|{'--:|' * len(places)}")
    for what in counts[0]:
        print(f"| {what} | {' | '.join(found[what] for found in counts)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
