"""rollmill: train agents at the speed of the simulator, keep what they did, learn from it again.

The names below are what a notebook or a script needs (``docs/api.md``). Each is imported when it is first used, so
``import rollmill`` costs next to nothing; everything else is found under its own module.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers understand it; ``typing`` alone would take most of the time of this import
if TYPE_CHECKING:
    from typing import Any

    from rollmill.api.collecting import collect as collect
    from rollmill.api.envs import make_env as make_env
    from rollmill.api.experiments import launch_experiment as launch_experiment
    from rollmill.api.metrics import Metrics as Metrics
    from rollmill.api.policies import evaluate as evaluate
    from rollmill.api.policies import load_policy as load_policy
    from rollmill.api.policies import match as match
    from rollmill.api.run import Run as Run
    from rollmill.api.sampling import sample as sample
    from rollmill.api.stores import open_store as open_store
    from rollmill.api.training import train as train
    from rollmill.core.errors import RollmillError as RollmillError
    from rollmill.launch.experiment import Experiment as Experiment
    from rollmill.learning.custom import CustomLearner as CustomLearner
    from rollmill.runs.settings.train import TrainConfig as TrainConfig
    from rollmill.runs.train.observers import Observer as Observer
    from rollmill.store.reader import Store as Store
    from rollmill.store.views import Transitions as Transitions
    from rollmill.store.views import Windows as Windows

__version__ = "0.2.0"

_PLACES = {
    "train": "rollmill.api.training",
    "evaluate": "rollmill.api.policies",
    "load_policy": "rollmill.api.policies",
    "match": "rollmill.api.policies",
    "collect": "rollmill.api.collecting",
    "sample": "rollmill.api.sampling",
    "open_store": "rollmill.api.stores",
    "make_env": "rollmill.api.envs",
    "Run": "rollmill.api.run",
    "Metrics": "rollmill.api.metrics",
    "TrainConfig": "rollmill.runs.settings.train",
    "Observer": "rollmill.runs.train.observers",
    "CustomLearner": "rollmill.learning.custom",
    "Store": "rollmill.store.reader",
    "Windows": "rollmill.store.views",
    "Transitions": "rollmill.store.views",
    "Experiment": "rollmill.launch.experiment",
    "launch_experiment": "rollmill.api.experiments",
    "RollmillError": "rollmill.core.errors",
}
"""Where each name lives."""

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
