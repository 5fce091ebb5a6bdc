"""What an evaluation refuses before anything is played."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from unprivileged import run_unprivileged

from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.runs.evaluate.options import CONTRADICTIONS, WRONG, EvalOptions, check_outputs, check_targets
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.policies.find import find_targets

VIDEO = Path("v")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"episodes": 0}, "--episodes must be"),
    ({"steps": 0}, "--steps must be"),
    ({"envs": 0}, "--envs must be"),
    ({"workers": -1}, "--workers must be"),
    ({"seed": -1}, "--seed must not"),
    ({"seeds": (1, 1)}, "--seeds: one is given twice"),
    ({"targets": (1.0, float("inf"))}, "--targets must be finite"),
    ({"targets": (1.0, 2.0, 1.0)}, "--targets: one is given twice"),
    ({"report": Path("page.txt")}, "--report page.txt: the page needs a name that ends in .html"),
    ({"video_count": 0, "video": VIDEO}, "--video-count must be"),
    ({"fps": 0.0, "video": VIDEO}, "--fps must be"),
    ({"grid": "3", "video": VIDEO}, "--grid 3: expected ROWSxCOLUMNS"),
    ({"episodes": 3, "steps": 3}, "--episodes and --steps exclude each other"),
    ({"best": True, "all_checkpoints": True}, "--best and --all-checkpoints exclude each other"),
    ({"seeds": (1, 2), "seed": 4}, "--seed and --seeds exclude each other"),
    ({"seeds": (1, 2), "video": VIDEO}, "--seeds and --video"),
    ({"serial": True, "workers": 2}, "--serial and --workers 2"),
    ({"workers": 5, "envs": 4}, "--workers 5 and --envs 4"),
    ({"record": True, "steps": 9}, "--record and --steps"),
    ({"save_info": ()}, "--save-info: rows are kept in a store: add --record"),
    ({"targets": (1.0, 2.0), "steps": 9}, "--targets and --steps"),
    ({"targets": (1.0, 2.0), "record": True}, "--targets and --record"),
    ({"grid": "2x2"}, "--grid is for videos"),
    ({"video_count": 2}, "--video-count is for videos"),
    ({"fps": 9.0}, "--fps is for videos"),
    ({"no_captions": True}, "--no-captions is for videos"),
    ({"video": VIDEO, "grid": "2x2", "video_count": 2}, "--grid and --video-count exclude each other"),
    ({"video": VIDEO, "video_count": 4, "episodes": 3}, "--video-count 4: only 3 episodes are played"),
    ({"video": VIDEO, "grid": "2x2", "episodes": 3}, "--grid 2x2: has more cells than the 3 episodes"),
    ({"csv": Path("a/../x"), "out": Path("x")}, "--csv and --out name the same file"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=lambda x: str(x)[:30])
def test_refused_with_a_reason(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        evaluate(Path("never looked at"), EvalOptions(**options))


def test_every_rule_has_been_made_to_fire() -> None:
    """By exactly one of the cases above each, in the order of the tables."""
    rules = (*WRONG, *CONTRADICTIONS)
    fired = [next(k for k, (is_wrong, _) in enumerate(rules) if is_wrong(EvalOptions(**o))) for o, _ in REFUSED]
    assert fired == list(range(len(rules)))


def test_what_is_left_open() -> None:
    assert (EvalOptions().wanted, EvalOptions(episodes=7).wanted, EvalOptions(steps=7).wanted) == (100, 7, None)
    assert EvalOptions().shown_episodes == 0
    assert EvalOptions(video=VIDEO, episodes=2).shown_episodes == 2
    assert EvalOptions(video=VIDEO, grid="2x3").shown_episodes == 6


def test_flags_that_choose_among_checkpoints_are_not_for_files(tmp_path: Path) -> None:
    file = tmp_path / "x.ckpt"
    file.touch()
    for name in ("best", "all_checkpoints"):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} chooses among a run's checkpoints"):
            check_targets(EvalOptions(**{name: True}), [file])  # type: ignore[arg-type]
        check_targets(EvalOptions(**{name: True}), [tmp_path])  # type: ignore[arg-type]


def test_every_output_is_tried_out(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for name in ("out", "csv", "video"):
        with pytest.raises(RunFolderError, match=f"--{name}"):
            check_outputs(EvalOptions(**{name: blocked / "below/x"}))  # type: ignore[arg-type]
    for name in ("out", "csv"):
        with pytest.raises(RunFolderError, match="is a folder"):
            check_outputs(EvalOptions(**{name: tmp_path}))  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="--video: nothing can be written"):
        check_outputs(EvalOptions(video=blocked))
    with pytest.raises(RunFolderError, match="File name too long"):
        check_outputs(EvalOptions(out=tmp_path / ("x" * 300)))
    check_outputs(EvalOptions(out=tmp_path / "new/x.json", csv=tmp_path / "x.csv", video=tmp_path / "videos"))
    assert sorted(os.listdir(tmp_path)) == ["file", "new", "videos"]


def test_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "x.csv").touch(0o400)
    code = f"from {check_outputs.__module__} import *; from pathlib import Path; "
    done = run_unprivileged(["-c", f"{code}check_outputs(EvalOptions(csv=Path('x.csv')))"], tmp_path)
    assert "RunFolderError: --csv" in done.stderr
    assert "no permission" in done.stderr


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    odd = tmp_path / "run[1]"
    odd.mkdir()
    assert find_targets([str(odd), odd]) == [str(odd)]
