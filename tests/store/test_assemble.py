"""Rows of lanes to episodes: pieces, what continues them, and where they end."""

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.assemble import Assembler, Piece, Rows, find_pieces


def lane_rows(*steps: tuple[int, int] | None, ends: tuple[int, ...] = ()) -> dict[str, Array]:
    """A segment of one lane: (episode, step) of each row, None for one that does not count; ``ends`` are terminated."""
    count = len(steps)
    rows = {name: np.zeros((count + 1, 1), np.int64) for name in ("episode", "step", "x")}
    rows |= {name: np.zeros((count + 1, 1), bool) for name in ("valid", "terminated", "truncated")}
    rows["x"][:, 0] = np.arange(count + 1)
    for t, found in enumerate(steps):
        if found is not None:
            rows["episode"][t], rows["step"][t] = found
            rows["valid"][t] = True
    rows["terminated"][list(ends)] = True
    return rows


class Heard:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def append(self, key: int, columns: Rows) -> None:
        self.said.append((key, columns["rows"].tolist()))

    def end(self, key: int, final: Rows, terminated: bool, truncated: bool) -> None:
        self.said.append((key, int(final["last"]), terminated, truncated))


def heard(*segments: dict[str, Array]) -> tuple[list[object], Assembler]:
    """What is told of segments of lane 7, whatever they hold."""
    out = Heard()
    assembler = Assembler(out, {"rows": "x"}, {"last": "x"})
    for segment in segments:
        for piece in find_pieces(segment).listed():
            if not assembler.continues(7, piece):
                out.said.append("new")
            assembler.add(segment, 7, piece)
    return out.said, assembler


def test_pieces_are_found_lane_by_lane() -> None:
    valid: Array = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]], bool)
    numbers = np.arange(15).reshape(5, 3)
    pieces = find_pieces({"valid": valid, "episode": numbers, "step": -numbers})
    expected = [Piece(0, 0, 2, 0, 0), Piece(0, 3, 4, 9, -9), Piece(1, 0, 1, 1, -1), Piece(1, 2, 4, 7, -7)]
    assert pieces.listed() == expected
    assert pieces.listed(pieces.start > 0) == [expected[1], expected[3]]


def test_an_episode_goes_on_across_borders() -> None:
    said, assembler = heard(
        lane_rows((0, 0), (0, 1)), lane_rows((0, 2), (0, 3), ends=(1,)), lane_rows(None, (1, 0)), lane_rows((1, 1))
    )
    assert said == ["new", (7, [0, 1]), (7, [0, 1]), (7, 2, True, False), "new", (7, [1]), (7, [0])]
    assert assembler.open == [7]
    assembler.leave_all()
    assert said[-1] == (7, 1, False, False)
    assert assembler.open == []


def test_nothing_is_joined_across_a_hole() -> None:
    for later in (lane_rows((0, 3)), lane_rows((1, 2)), lane_rows(None, (0, 2))):
        said, _ = heard(lane_rows((0, 0), (0, 1)), later)
        assert said[:4] == ["new", (7, [0, 1]), (7, 2, False, False), "new"]


def test_a_fault_stops_an_episode_where_it_was() -> None:
    said, assembler = heard(lane_rows((0, 0), (0, 1), None, (1, 0)))
    assert said == ["new", (7, [0, 1]), (7, 2, False, False), "new", (7, [3])]
    assert assembler.open == [7]


def test_rows_that_follow_are_not_changed_with_the_segment() -> None:
    segment = lane_rows((0, 0))
    said, assembler = heard(segment)
    segment["x"][:] = 99
    assembler.leave(7)
    assembler.leave(7)
    assert said == ["new", (7, [0]), (7, 1, False, False)]
