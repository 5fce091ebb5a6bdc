"""Pickled episodes: never without being asked for, and validated then."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import StoreError
from rollmill.store.convert.pickled import ImportOptions, import_episodes
from rollmill.store.reader import Store

TRUSTED = ImportOptions(unsafe_pickle=True)


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def episode(n: int, rows: int, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.integers(0, 3, n),
        "rewards": np.arange(n),
        **more,
    }


def dump(path: Path, *items: Any) -> str:
    with open(path, "wb") as file:
        for item in items:
            pickle.dump(item, file)
    return str(path)


def test_code_is_refused_by_its_name_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = dump(tmp_path / "x.pkl", [Bomb()])
    with pytest.raises(StoreError, match=r"it names \S*Path.*--unsafe-pickle"):
        import_episodes([file], tmp_path / "out", ImportOptions())
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(StoreError, match="is a "):
        import_episodes([file], tmp_path / "out", TRUSTED)
    assert (tmp_path / "exploded").exists(), "the bomb was a real one"


def test_episodes_with_and_without_a_final_observation(tmp_path: Path) -> None:
    following = np.full((5, 3), 7, np.float32)
    flags = np.zeros(5, bool)
    flags[-1] = True
    file = dump(
        tmp_path / "x.pkl",
        [episode(4, 5, terminated=True), episode(5, 5, next_observations=following, terminals=flags)],
        episode(6, 6, timeouts=[False] * 5 + [True]),
    )
    done = import_episodes([file], tmp_path / "out", ImportOptions())
    assert (done.episodes, done.steps) == (3, 15)
    store = Store(tmp_path / "out")
    assert store.table["terminated"].tolist() == [True, True, False]
    assert store.table["truncated"].tolist() == [False, False, True]
    assert np.array_equal(store.episode(0).obs["obs"], episode(4, 5)["observations"])
    assert store.episode(1).obs["obs"][-1].tolist() == [7, 7, 7]
    assert np.array_equal(*store.episode(2).obs["obs"][-2:])
    assert store.stats(2) == {"final_observation": "repeated"}
    assert "1 episodes came without a final observation" in done.notes[0]


def test_observations_by_name(tmp_path: Path) -> None:
    item = episode(2, 3)
    item["observations"] = {"image": np.zeros((3, 4, 4, 3), np.uint8), "vector": np.ones((3, 2), np.float32)}
    import_episodes([dump(tmp_path / "x.pkl", [item])], tmp_path / "out", TRUSTED)
    assert set(Store(tmp_path / "out").episode(0).obs) == {"image", "vector"}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([5], "is a int, a mapping"),
        ([{"observations": []}], "has no 'actions'"),
        ([episode(0, 1)], "has no steps"),
        ([episode(3, 7)], "7 observations for 3 steps"),
        ([{**episode(3, 4), "actions": [1, 2]}], "2 actions, 3 rewards"),
        ([episode(3, 4), {**episode(3, 4), "observations": np.zeros((4, 2))}], "before they were"),
        ([], "no episode in"),
    ],
)
def test_wrong_episodes_are_named(tmp_path: Path, items: list[Any], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        import_episodes([dump(tmp_path / "x.pkl", items)], tmp_path / "out", TRUSTED)
    assert not (tmp_path / "out").exists()


def test_what_is_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_text("hello")
    for name in ("x.pkl", "missing.pkl"):
        with pytest.raises(StoreError, match=f"{name} cannot be read"):
            import_episodes([str(tmp_path / name)], tmp_path / "out", TRUSTED)
