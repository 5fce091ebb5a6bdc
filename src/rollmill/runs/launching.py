"""From the description of an experiment to what can be launched; runs are checked as they will check themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.launch.experiment import Experiment, describe_search, described_search, load_experiment
from rollmill.launch.launcher import Launcher, settings_of
from rollmill.launch.plan import Plan, PlannedRun, RunFacts, make_plan, plan_members, plan_trials
from rollmill.launch.populating import PopulationLauncher
from rollmill.launch.records import LaunchRecords, PlanRecord
from rollmill.launch.search import suggest
from rollmill.launch.searching import SearchLauncher
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.verbs import verb_of
from rollmill.pbt.exchange import About
from rollmill.pbt.settings import PbtSettings
from rollmill.runs.settings.population_checks import check_separate, configured, separate_period
from rollmill.runs.settings.train import TrainConfig, check


def check_run(run: PlannedRun) -> RunFacts:
    """Load the settings of a run as its own process will, and refuse what that would refuse at once."""
    verb, files = verb_of(run.program), [Path(file) for file in run.files]
    if verb == ("offline",):
        from rollmill.runs.settings.offline import OfflineConfig, check_offline

        offline = load_config(OfflineConfig, files, run.words)
        check_offline(offline)
        return RunFacts(offline.fit.steps)
    if verb is not None and verb[0] == "world":
        _check_world(verb, files, run.words)
        return RunFacts()
    config = load_config(TrainConfig, files, run.words)
    if verb in (("collect",), ("eval",), ("match",)):
        return RunFacts()
    if verb is not None:
        check(config)  # a program of one's own may bring its own environment
    return RunFacts(config.stop.frames, config.recording.budget_gb if config.recording.on else 0.0)


def _check_world(verb: tuple[str, ...], files: Sequence[Path], words: Sequence[str]) -> None:
    from rollmill.runs.settings import world
    from rollmill.worldmodel.dynamics.settings import DynamicsSettings

    if verb == ("world", "encode") and files:
        raise ConfigError("`rollmill world encode` takes no --config; leave out config")
    settings: dict[str, type] = {
        "run": world.WorldConfig,
        "vae": world.VaeConfig,
        "encode": world.EncodeWords,
        "dynamics": DynamicsSettings,
        "controller": world.ControllerConfig,
        "dream": world.ControllerConfig,
    }
    load_config(settings[verb[1]], files, words)


def launch_settings(experiment: Experiment, overrides: Sequence[str]) -> LaunchSettings:
    """Return how an experiment is to be launched: what its description says, below what the user gives."""
    try:
        load_config(LaunchSettings, [], [], base=experiment.launch)
    except ConfigError as error:
        raise ConfigError(f"launch: {error}") from error
    return load_config(LaunchSettings, [], overrides, base=experiment.launch)


def plan_of(experiment: Experiment, root: Path) -> Plan:
    """Plan all runs of an experiment; of a search those of its trials so far, or of the first one."""
    folder = root / experiment.name
    if experiment.population is not None:
        return _plan_population(experiment, experiment.population, folder)
    if experiment.search is None:
        return make_plan(experiment, root, check_run)
    trials = [(trial.number, dict(trial.params)) for trial in LaunchRecords(folder).trials()]
    runs = plan_trials(experiment, root, check_run, trials or [(0, suggest(experiment.search, []))])
    return Plan(experiment.name, folder, runs, experiment.expect, describe_search(experiment))


def _plan_population(experiment: Experiment, pbt: PbtSettings, folder: Path) -> Plan:
    runs = plan_members(experiment, folder.parent, check_run)
    config = load_config(TrainConfig, [Path(file) for file in runs[0].files], runs[0].words)
    check_separate(config, pbt)
    (seed,) = experiment.seed_list()
    own = {key: configured(config, key) for key in pbt.tuned}
    about = About(pbt, own, separate_period(config, pbt), seed, [run.name for run in runs])
    return Plan(experiment.name, folder, runs, experiment.expect, population=about.to_dict())


def launcher_of(records: LaunchRecords, plan: PlanRecord, settings: LaunchSettings) -> Launcher:
    """Return the launcher that looks after these runs."""
    if plan.population is not None:
        return PopulationLauncher(records, plan, settings)
    if plan.search is None:
        return Launcher(records, plan, settings)
    return SearchLauncher(records, plan, settings, described_search(plan.search), check_run)


def open_launch(
    description: str | Experiment, overrides: Sequence[str], root: Path
) -> tuple[LaunchRecords, LaunchSettings, Plan | None]:
    """Return a new or changed plan from a description, or None and what is on disk from an experiment's folder."""
    if isinstance(description, str) and Path(description).is_dir():
        records = LaunchRecords(Path(description))
        return records, settings_of(records.read_plan(), overrides), None
    experiment = load_experiment(description) if isinstance(description, str) else description
    settings = launch_settings(experiment, overrides)
    made = plan_of(experiment, root)
    return LaunchRecords(made.folder), settings, made
