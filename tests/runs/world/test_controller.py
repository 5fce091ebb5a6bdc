"""The search for a controller: it learns, continues, survives faults, and plays in dreams as well."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dreaming import corner_model
from world_stages import TOY, controller_settings, corner_models, search

from rollmill.core.errors import ConfigError, EnvError, RunFolderLost
from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.settings import EnvSettings
from rollmill.envs.toy import Image
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.results import Score
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.world.controller import (
    EvalTarget,
    member_returns,
    train_controller,
)
from rollmill.worldmodel.controller.model import load_controller
from rollmill.worldmodel.controller.settings import DreamSettings
from rollmill.worldmodel.controller.trials import share_out


class Fragile(Image):
    """Breaks under some actions in some states."""

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if self._t == 4 and self._corner == 3 and int(action[0]) != 1:
            raise RuntimeError("broken")
        return super().step(action, obs)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corner_models(tmp_path_factory.mktemp("models"))


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "generations.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_returns_rise_and_everything_is_written_down(models: Path, tmp_path: Path) -> None:
    outcome = search(models, tmp_path / "c", population=16, generations=40, envs=16, evaluate_every=20)
    rows = table(tmp_path / "c")
    assert len(rows) == outcome.generations == 40
    assert float(rows[-1]["mean"]) > float(rows[0]["mean"]) + 3
    assert outcome.final is not None
    assert np.mean(outcome.final.returns) > 6  # by chance: 2.5
    assert int(rows[-1]["env_steps"]) == outcome.env_steps == 40 * 16 * 10
    assert [bool(row["evaluated_best"]) for row in rows].count(True) == 2
    for name in ("return_by_generation.svg", "return_by_steps.svg"):
        assert (tmp_path / "c" / name).read_text().startswith("<svg xmlns=")
    saved = load_controller(outcome.controller)
    assert saved.env["id"] == "toy_image"
    assert saved.metadata["final"] == pytest.approx(np.mean(outcome.final.returns))
    assert json.dumps(outcome.to_dict())


@pytest.mark.parametrize("share", [1 / 3, 1.0])
def test_a_search_whose_folder_is_removed_fails(models: Path, tmp_path: Path, share: float) -> None:
    def remove(done: float, _: object) -> None:
        if done == share:
            shutil.rmtree(tmp_path / "c")

    with pytest.raises(RunFolderLost, match="c: the folder of the run is lost"):
        search(models, tmp_path / "c", progress=remove)
    assert not (tmp_path / "c").exists()


def test_generations_after_the_last_evaluation_are_judged_too(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Array] = []
    evaluate = EvalTarget.evaluate

    def listen(target: EvalTarget, weights: Array, episodes: int, seed: int) -> Score:
        judged.append(np.array(weights))
        return evaluate(target, weights, episodes, seed)

    monkeypatch.setattr(EvalTarget, "evaluate", listen)
    search(models, tmp_path / "even", generations=2, evaluate_every=2)
    assert len(judged) == 2 + 1  # best and mean of generation 2, and the champion at the end
    judged.clear()
    search(models, tmp_path / "odd", generations=3, evaluate_every=2)
    assert len(judged) == 3 + 1
    assert not np.array_equal(judged[1], judged[2])  # means of generations 2 and 3
    assert float(table(tmp_path / "odd")[-1]["evaluated_mean"]) <= float(table(tmp_path / "odd")[-1]["champion"])
    longer = search(models, tmp_path / "odd", generations=5, evaluate_every=2)
    at_once = search(models, tmp_path / "at_once", generations=5, evaluate_every=2)
    assert longer.best_return == at_once.best_return
    assert np.array_equal(load_controller(longer.controller).weights, load_controller(at_once.controller).weights)


def test_a_search_goes_on_where_it_stopped(models: Path, tmp_path: Path) -> None:
    whole = search(models, tmp_path / "whole", inputs="zh", generations=4)

    def stop(share: float, metrics: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    half = search(models, tmp_path / "half", inputs="zh", generations=4, progress=stop)
    assert half.interrupted
    assert half.generations == 1
    assert half.final is None
    rest = search(models, tmp_path / "half", inputs="zh", generations=4, envs=8)  # other numbers of envs are welcome
    assert not rest.interrupted
    drop = ("seconds",)
    rows = [[{k: v for k, v in row.items() if k not in drop} for row in table(tmp_path / n)] for n in ("whole", "half")]
    assert rows[0] == rows[1]
    assert np.array_equal(load_controller(whole.controller).weights, load_controller(rest.controller).weights)
    with pytest.raises(ConfigError, match="sigma"):
        search(models, tmp_path / "half", inputs="zh", sigma=0.1)
    with pytest.raises(ConfigError, match="another environment"):
        search(models, tmp_path / "half", EnvSettings(id="toy_image", args={"length": 5}), inputs="zh", generations=4)


def test_worker_processes_give_the_same_numbers_in_lockstep(models: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {"generations": 2, "trials": 2, "evaluate_every": 0, "final_episodes": 0}
    search(models, tmp_path / "serial", **values)
    search(models, tmp_path / "processes", mode="processes", workers=2, envs=8, **values)
    means = [[row["mean"] for row in table(tmp_path / name)] for name in ("serial", "processes")]
    assert means[0] == means[1]


def test_lost_episodes_are_counted_and_do_not_stop_the_search(models: Path, tmp_path: Path) -> None:
    env = EnvSettings(id=f"{__name__}:Fragile", fault_limit=1000)
    search(models, tmp_path / "c", env, trials=4, envs=8, generations=4, evaluate_every=0, final_episodes=0)
    lost = [int(row["lost"]) for row in table(tmp_path / "c")]
    assert sum(lost) > 0


def test_a_search_in_dreams_is_judged_outside(models: Path, tmp_path: Path) -> None:
    dream = DreamSettings(max_steps=8, temperature=0.5)
    outcome = search(models, tmp_path / "c", inputs="zh", dream=dream)
    assert outcome.final is not None
    assert len(outcome.final.returns) == 4
    assert 3 * 8 <= outcome.env_steps <= 3 * 8 * 8
    with pytest.raises(ConfigError, match="a dream needs"):
        train_controller(controller_settings(), TOY, models, None, tmp_path / "d", dream=dream)


def test_a_saved_controller_plays_by_its_path(models: Path, tmp_path: Path) -> None:
    outcome = search(models, tmp_path / "c", generations=1, evaluate_every=1, final_episodes=0)
    options = EvalOptions(episodes=3, seed=5, envs=2, workers=1)
    score, again = (evaluate(path, options).policy for path in (outcome.controller, tmp_path / "c"))
    assert len(score.returns) == 3
    assert score == again


def test_a_search_may_begin_at_a_saved_controller(models: Path, tmp_path: Path) -> None:
    none = {"evaluate_every": 1, "final_episodes": 0}
    first = search(models, tmp_path / "a", generations=2, **none)
    search(models, tmp_path / "b", generations=1, start=tmp_path / "a", sigma=1e-6, **none)
    weights = [load_controller(tmp_path / name).weights for name in ("a", "b")]
    assert np.allclose(*weights, atol=1e-4)
    with pytest.raises(ConfigError, match=r"start=.*20 weights, controllers of these settings have 44"):
        search(models, tmp_path / "c", start=first.controller, inputs="zh")


def test_what_does_not_fit_is_refused_before_anything_is_written(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inputs=zh needs a dynamics model"):
        train_controller(controller_settings(inputs="zh"), TOY, models, None, tmp_path / "c")
    with pytest.raises(ConfigError, match="one image"):
        search(models, tmp_path / "c", EnvSettings(id="toy_image", args={"size": 20}))
    with pytest.raises(ConfigError, match="one image"):
        search(models, tmp_path / "c", EnvSettings(id="toy_target"))
    corner_model(tmp_path / "dynamics.bin", memory="none")
    with pytest.raises(ConfigError, match="inputs=z"):
        train_controller(controller_settings(inputs="zh"), TOY, models, tmp_path, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("episodes", "envs", "workers", "expected"),
    [
        (128, 64, 2, (2, 32, 2)),
        (6, 64, 2, (2, 3, 1)),
        (7, 4, 2, (1, 1, 1)),
        (12, 5, 2, (2, 2, 2)),
        (3, 8, 4, (3, 1, 1)),
    ],
)
def test_episodes_are_shared_out_evenly(episodes: int, envs: int, workers: int, expected: tuple[int, int, int]) -> None:
    layout = share_out(episodes, envs, workers)
    assert (layout.workers, layout.envs_per_worker, layout.groups) == expected
    assert episodes % layout.envs == 0


def test_returns_of_members() -> None:
    nan = np.nan
    assert member_returns(np.array([[1.0, 3.0], [nan, 5.0], [nan, nan]])).tolist() == [2.0, 5.0, 2.0]
    with pytest.raises(EnvError, match="no episode"):
        member_returns(np.full((2, 2), nan))
