"""``rollmill world controller``: search for the weights of a controller, in the environment or in a dream of it.

``train_controller`` shows the order: load the models, look at the environment, take the folder, go on where an earlier
session stopped, play generations, evaluate, and write table, plots and the best controller after each of them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.shapes import ArrayOf, Shape
from rollmill.envs.make import check_env_settings
from rollmill.envs.probe import Probe, probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.monitor.console import Row, count_text
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display
from rollmill.reports.run.world import GenerationRow, write_generations
from rollmill.runs.evaluate.results import Score
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.lifecycle import Progress as Tell
from rollmill.runs.policies.controller import Models, WorldModelPolicy, load_models
from rollmill.runs.resume import stage_check
from rollmill.runs.trust import SavedEnv, load_saved, stored_env
from rollmill.worldmodel.controller.cmaes import SEARCH_SHAPE, Search, resume_search
from rollmill.worldmodel.controller.model import (
    SavedController,
    build_net,
    image_field,
    save_controller,
    start_weights,
)
from rollmill.worldmodel.controller.nets import Net
from rollmill.worldmodel.controller.settings import ControllerSettings, DreamSettings
from rollmill.worldmodel.controller.trials import Played, Trials
from rollmill.worldmodel.dream import DreamTrials
from rollmill.worldmodel.dynamics.model import load_origin
from rollmill.worldmodel.files import CONTROLLER, DYNAMICS, ENCODER
from rollmill.worldmodel.own import NOBODY, Trust

log = logging.getLogger("rollmill")

STATE_SHAPE: dict[str, Shape] = {
    "search": SEARCH_SHAPE,
    "rows": [{str: (float, None)}],
    "champion": ArrayOf("f", 1),
    "champion_return": (float, None),
    "seconds": float,
    "env_steps": int,
}
CHECK = stage_check("controller", STATE_SHAPE)
ROWS = (
    Row("mean", "search/mean"),
    Row("best", "search/best"),
    Row("champion", "search/champion"),
    Row("sigma", "search/sigma"),
    Row("steps", "search/env_steps", count_text),
    Row("steps/s", "time/steps_per_s", count_text),
)
CONSOLE_SECONDS = 5.0
PROBE_SECONDS = 120.0
EVALUATION, FINAL = 1_000_003, 2_000_003
"""Added to the seed of evaluations: they play other episodes than the search, and the last one others still."""


class Evaluator(Protocol):
    """Plays a generation: members ``[population, P]`` in, returns out."""

    def play(self, members: Array) -> Played: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ControllerOutcome(Ended):
    """How the stage ended."""

    controller: Path
    generations: int
    env_steps: int
    best_return: float | None
    """Of the champion, in the evaluations during the search."""
    final: Score | None
    """Of the champion, on episodes that it was not chosen by."""

    def to_dict(self) -> dict[str, Any]:
        final = self.final
        return {
            **{name: value for name, value in super().to_dict().items() if name != "final"},
            "final_return": float(np.mean(final.returns)) if final else None,
            "final_std": float(np.std(final.returns)) if final else None,
            "final_episodes": len(final.returns) if final else 0,
        }


def train_controller(
    settings: ControllerSettings,
    env: EnvSettings,
    encoder_path: Path,
    dynamics_path: Path | None,
    out: Path,
    *,
    dream: DreamSettings | None = None,
    request: Request | None = None,
    progress: Tell | None = None,
    trust: Trust = NOBODY,
) -> ControllerOutcome:
    """Search for a controller, or go on with it; ``out/controller.bin`` is the best one.

    ``dream``: the search happens in the dynamics model; evaluations are always in the environment. ``dynamics_path``
    None: the controller sees latents alone. ``trust``: code that the models' files may name. Raises RollmillError when
    it fails.
    """
    request = request or Request("continue")
    check_env_settings(env)
    models = load_models(settings, encoder_path, dynamics_path, trust)
    if dream is not None and models.dynamics is None:
        raise ConfigError("a dream needs a dynamics model")
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(process_scope(inside=settings.mode == "serial"))
        serial = settings.mode == "serial"
        spec = probe_here(env) if serial else Probe(env, environment).result(PROBE_SECONDS)
        models.check(spec)
        net = build_net(settings, models.dynamics, models.encoder.size, spec.action)
        inputs = {
            "encoder": ENCODER.checksum(encoder_path),
            "dynamics": DYNAMICS.checksum(dynamics_path) if dynamics_path else "",
            "environment": to_dict(env),
            "dream": to_dict(dream) if dream else None,
        }
        life = stack.enter_context(live("controller", out, settings, request, CHECK, inputs=inputs, progress=progress))
        target = EvalTarget(settings, env, spec, models, environment)
        paths = (str(encoder_path), str(dynamics_path or ""))
        run = _SearchRun(target, life, paths, net)
        life.begin(run)
        with life.interrupt, contextlib.closing(run.evaluator(dream)) as evaluator:
            request.on_ready()
            run.loop(evaluator)
        final = None
        if not life.stopped:
            with life.afterwards():
                final = run.finish()
    return ControllerOutcome(
        **life.ended(),
        controller=out / CONTROLLER.name,
        generations=run.step,
        env_steps=run.env_steps,
        best_return=run.champion_return,
        final=final,
    )


def known_env(dynamics_path: Path | None, trust_code: bool = False) -> EnvSettings:
    """Return the environment whose episodes a dynamics model was fitted to; ``trust_code``: even own code."""
    if dynamics_path is None:
        raise ConfigError("which environment? Name it with env=...")
    origin = load_origin(dynamics_path)
    saved = stored_env(origin.env_id, origin.env_kwargs, origin.env_settings, origin.spec)
    return load_saved(SavedEnv, saved, DYNAMICS.find(dynamics_path), trust_code=trust_code).env


@dataclass(frozen=True)
class EvalTarget:
    """Where a controller plays, and through which models."""

    settings: ControllerSettings
    env: EnvSettings
    spec: EnvSpec
    models: Models
    environment: Mapping[str, str]

    def evaluate(self, weights: Array, episodes: int, seed: int) -> Score:
        """Play numbered episodes in the real environment, uncut but for its own limit."""
        s = self.settings
        setup = EvalSetup(
            *(self.env, self.spec, seed, s.workers, s.envs), serial=s.mode == "serial", environment=self.environment
        )
        policy = WorldModelPolicy(name="controller", env=self.env, settings=s, models=self.models, weights=weights)
        (score,) = setup.play(policy, episodes).scores
        return score


class _SearchRun:
    """A search under way."""

    def __init__(self, target: EvalTarget, life: Life, paths: tuple[str, str], net: Net) -> None:
        self.target, self.life, self.settings, self._paths = target, life, target.settings, paths
        s = self.settings
        self.rows: list[GenerationRow] = []
        self.champion = np.zeros(net.weights, np.float32)
        self.champion_return: float | None = None
        self.seconds = 0.0
        self.env_steps = 0
        start = start_weights(s.start, net) if s.start is not None and life.loaded is None else None
        size = net.weights
        self.search = Search(size, s.population, s.sigma, s.seed, s.covariance, start, shrink=s.shrink)
        log.info("controllers of %d weights, %d in a generation", size, s.population)

    @property
    def step(self) -> int:
        """Generations so far."""
        return self.search.generation

    def evaluator(self, dream: DreamSettings | None) -> Evaluator:
        target, s = self.target, self.settings
        first = self.search.generation
        if dream is not None:
            assert target.models.dynamics is not None
            state = target.models.controller_state(s, target.spec, s.population * s.trials)
            return DreamTrials(s, dream, target.models.dynamics, state, first)
        on_gpu = target.models.device.type == "cuda"
        trials = Trials(s, target.env, target.spec, first, target.environment, on_gpu)
        agent = target.models.agent(s, target.spec, trials.layout.envs)
        trials.start(agent, image_field(target.spec, target.models.encoder))
        return trials

    def loop(self, evaluator: Evaluator) -> None:
        """Play generations until a limit or a signal ends it."""
        s, life = self.settings, self.life
        title, progress = f"controller: {life.folder.path}", Progress(s.generations, s.seconds, self.seconds)
        life.reporter.open(self.step, Display(life.console, title, ROWS, progress, CONSOLE_SECONDS))
        if not life.can_be_resumed:
            life.try_save(self.state(), self.step)  # one that is killed early can be resumed, too
        while not life.over(self._limit):
            begun = time.perf_counter()
            members = self.search.ask()
            played = evaluator.play(members)
            returns = member_returns(played.returns)
            self.search.tell(returns - self.settings.decay * np.square(members).mean(1))
            self.env_steps += played.steps
            evaluated = self._evaluate(members[int(returns.argmax())]) if self._due() else {}
            self.seconds += time.perf_counter() - begun
            self._note(returns, played, evaluated)
            life.try_save(self.state(), self.step)
            self._write()
        life.save(self.state(), self.step)

    def _limit(self) -> str:
        s = self.settings
        if self.step >= s.generations:
            return f"reached generations={s.generations:_}"
        return f"reached seconds={s.seconds:g}" if s.seconds and self.seconds >= s.seconds else ""

    def _due(self) -> bool:
        every = self.settings.evaluate_every
        return bool(every) and self.search.generation % every == 0

    def _evaluate(self, best: Array) -> dict[str, float]:
        """Judge the generation's best member and the search's mean over many episodes; the better may be champion."""
        return {"evaluated_best": self._judge(best), "evaluated_mean": self._judge(self.search.mean)}

    def _judge(self, weights: Array) -> float:
        """Return the mean return over the episodes of an evaluation; the best so far is the champion."""
        s = self.settings
        score = self.target.evaluate(weights, s.evaluate_episodes, s.seed + EVALUATION)
        value = float(np.mean(score.returns))
        if self.champion_return is None or value > self.champion_return:
            self.champion, self.champion_return = np.asarray(weights, np.float32), value
        return value

    def _note(self, returns: Array, played: Played, evaluated: Mapping[str, float]) -> None:
        row = GenerationRow(
            generation=self.search.generation,
            env_steps=self.env_steps,
            frames=self.env_steps * self.target.spec.frames_per_step,
            seconds=round(self.seconds, 3),
            mean=float(returns.mean()),
            best=float(returns.max()),
            worst=float(returns.min()),
            sigma=self.search.sigma,
            lost=int(np.isnan(played.returns).sum()),
            evaluated_best=evaluated.get("evaluated_best"),
            evaluated_mean=evaluated.get("evaluated_mean"),
            champion=self.champion_return,
        )
        self.rows.append(row)
        metrics = {
            f"search/{name}": float(v) for name, v in asdict(row).items() if v is not None and name != "generation"
        }
        last = self.rows[-2].seconds if len(self.rows) > 1 else 0.0
        metrics["time/steps_per_s"] = played.steps / max(row.seconds - last, 1e-9)
        log.info(
            "generation %d: mean %.2f, best %.2f, %s steps", row.generation, row.mean, row.best, f"{row.env_steps:,}"
        )
        self.life.report(row.generation, metrics, of=self.settings.generations)

    def finish(self) -> Score | None:
        """Make the last evaluation, and write the files."""
        if self.rows and self.rows[-1].evaluated_mean is None:
            # Generations since the last evaluation must not be in vain. The checkpoint does not learn of it: a search
            # that goes on from there is the one that would have gone on at once.
            value = self._judge(self.search.mean)
            self.rows[-1] = replace(self.rows[-1], evaluated_mean=value, champion=self.champion_return)
        self._write()
        if not self.settings.final_episodes or not self.rows:
            return None
        score = self.target.evaluate(self.champion, self.settings.final_episodes, self.settings.seed + FINAL)
        log.info("%d episodes: %.1f +- %.1f", len(score.returns), np.mean(score.returns), np.std(score.returns))
        self._write(final=float(np.mean(score.returns)))
        return score

    # -- files ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "search": self.search.state(),
            "rows": [asdict(row) for row in self.rows],
            "champion": self.champion,
            "champion_return": self.champion_return,
            "seconds": self.seconds,
            "env_steps": self.env_steps,
        }

    def _write(self, **metrics: float) -> None:
        """Write the controller, the table and the plots."""
        folder = self.life.folder.path
        chosen = self.champion if self.champion_return is not None else self.search.mean
        metadata = {"generation": self.search.generation, "evaluated": self.champion_return, **metrics}
        encoder, dynamics = self._paths
        saved = SavedController(self.settings, chosen, encoder, dynamics, to_dict(self.target.env), metadata)
        save_controller(folder / CONTROLLER.name, saved)
        write_generations(folder, self.rows)

    def load_state(self, loaded: Loaded) -> None:
        s, state = self.settings, loaded.state
        with restoring(loaded.path):
            where = str(loaded.path)
            self.search = resume_search(
                state["search"], seed=s.seed, covariance=s.covariance, how=s.resume, where=where
            )
            self.rows = [GenerationRow(**row) for row in state["rows"]]
            self.champion, self.champion_return = state["champion"], state["champion_return"]
            self.seconds, self.env_steps = state["seconds"], state["env_steps"]


def member_returns(returns: Array) -> Array:
    """Return ``[members]``, means over the trials played to their end; members without any get the worst of all."""
    played = ~np.isnan(returns)
    if not played.any():
        raise EnvError("no episode of the whole generation came to its end; the log names the faults")
    count = played.sum(1)
    sums = np.where(played, returns, 0.0).sum(1)
    means = np.where(count > 0, sums / np.maximum(count, 1), np.inf)
    worst = means[count > 0].min()
    result: Array = np.where(count > 0, means, worst)
    return result
