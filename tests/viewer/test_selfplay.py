"""Games of self-play as the server tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
from viewing import selfplay_run, serving

from rollmill.pbt.payoff import PAYOFF_FILE


def test_who_won_against_whom(tmp_path: Path) -> None:
    selfplay_run(tmp_path / "runs" / "play" / "one")
    with serving(tmp_path / "runs") as server:
        found = server.ask(f"/api/selfplay?run={server.id_of('play/one')}").json
        assert server.ask("/api/selfplay?run=nobody").code == 404
    assert found["names"] == ["model 0", "model 1", "model 2", "still"]
    cells = {(found["names"][one], found["names"][other]): own for one, other, *own in found["cells"]}
    assert cells[("model 2", "model 1")] == [3.0, 4], "two won, two drawn"
    assert cells[("model 0", "still")] == [4.0, 4]
    elo = [rating for rating, _ in found["ratings"]]
    assert elo[2] > elo[1] > elo[0] > elo[3]
    assert found["frames"]["model 2"] == 3000


@pytest.mark.parametrize("line", ['{"model": 3}\n', "[]\n", '{"model": 3, "frames": 1, "results": [{"policy": 0}]}\n'])
def test_a_damaged_table_is_said(tmp_path: Path, line: str) -> None:
    run = selfplay_run(tmp_path / "runs" / "play" / "one")
    with open(run / PAYOFF_FILE, "a") as file:
        file.write(line)
    with serving(tmp_path / "runs") as server:
        answer = server.ask(f"/api/selfplay?run={server.id_of('play/one')}")
    assert (answer.code, b"is damaged" in answer.body) == (422, True)
