"""Every verb of the command line: what it is called, what it is for, and where it is.

Nothing is imported before it is used, so that help and the answer to a typing error come at once. Help at every level,
dispatch, shell completion and the tests of the documentation all read this one tree.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence


class Verb:
    """A word that can be typed behind ``rollmill``, or behind another verb.

    ``target`` is ``module:function`` below ``rollmill.cli``, empty where one of its own verbs must follow; ``settings``
    is ``module:class`` below ``rollmill``: what its KEY=VALUE words set. No dataclass: importing those takes longer
    than all the rest of ``rollmill --help``.
    """

    def __init__(self, target: str, summary: str, verbs: Mapping[str, Verb] | None = None, settings: str = "") -> None:
        self.target = target
        self.summary = summary
        self.verbs = verbs or {}
        self.settings = settings

    def load(self) -> Callable[..., int]:
        """Return the function of this verb; imports its module."""
        module, _, name = self.target.partition(":")
        found: Callable[..., int] = getattr(importlib.import_module(f"rollmill.cli.{module}"), name)
        return found


_TRAIN = "runs.settings.train:TrainConfig"
_WHOLE_WORLD = "runs.settings.world:WorldConfig"
_CONTROLLER = "runs.settings.world:ControllerConfig"
_DREAMS = "runs.settings.world:DreamVideo"
_LAUNCHES = "launch.settings:LaunchSettings"

_DATA = {
    "info": Verb("data.check:info", "what a store holds"),
    "list": Verb("data.check:list_all", "the stores below a folder, with how each was made"),
    "verify": Verb("data.check:verify", "find every bad place, on all cores"),
    "repair": Verb("data.check:repair", "a new store with everything that is still good"),
    "merge": Verb("data.make:merge", "many stores into one"),
    "split": Verb("data.make:split", "one store into several, or a selection of it"),
    "export": Verb("data.make:export", "to Minari, TFRecord, TFDS, npz, Parquet, LeRobot or mp4"),
    "import": Verb("data.make:import_", "from Minari, TFRecord, npz or pickled episodes"),
    "report": Verb("data.report:report", "a page about a store, and its metrics as JSON"),
    "play": Verb("data.report:play", "videos of episodes, with action and reward drawn on"),
}
_WORLD = {
    "run": Verb("world.run:run", "all stages in turn; what is done is skipped", settings=_WHOLE_WORLD),
    "vae": Verb("world.encoder:vae", "learn an image encoder from a store", settings="runs.settings.world:VaeConfig"),
    "encode": Verb("world.encoder:encode", "a store of images into a store of latents"),
    "dynamics": Verb(
        "world.control:dynamics",
        "learn what happens next from a store of latents",
        settings="worldmodel.dynamics.settings:DynamicsSettings",
    ),
    "controller": Verb("world.control:controller", "search a controller by CMA-ES", settings=_CONTROLLER),
    "dream": Verb("world.control:dream", "search a controller inside the model, test it outside", settings=_CONTROLLER),
    "video": Verb(
        "world.control:video",
        "a video of dreams beside what really happened",
        settings=_DREAMS,
    ),
}
_LAUNCH = {
    "plan": Verb("launch:plan", "print commands, folders and totals; nothing is started", settings=_LAUNCHES),
    "run": Verb("launch:run", "start the runs, look after them, start again what failed", settings=_LAUNCHES),
    "status": Verb("launch:status", "a table of all runs, live on a terminal", settings=_LAUNCHES),
    "cancel": Verb("launch:cancel", "end runs, all or those that match", settings=_LAUNCHES),
}
_CLUSTER = {
    "up": Verb("cluster:up", "start the head of a Ray cluster on this machine"),
    "join": Verb("cluster:join", "have this machine sample for runs of a cluster"),
    "status": Verb("cluster:status", "this machine's part in clusters, and the nodes of runs"),
    "down": Verb("cluster:down", "end what up and join have started on this machine"),
}
_RUNS = {
    "diff": Verb("runs:diff", "compare two runs: settings and results"),
    "rm": Verb("runs:remove", "remove runs with all that they have written"),
}
_CHECKPOINT = {
    "list": Verb("checkpoints:list_all", "the checkpoints and the pool of a run"),
    "save": Verb("checkpoints:save", "have a running training write a checkpoint now"),
    "prune": Verb("checkpoints:prune", "remove checkpoints but the newest and the best"),
    "export": Verb("checkpoints:export", "the part of a checkpoint that plays, as one small file"),
}
_HUB = {
    "push": Verb("hub:push", "a policy with its score and a video, or a store", settings=_TRAIN),
    "pull": Verb("hub:pull", "fetch a policy or a store"),
}
_CONFIG = {
    "from-rllib": Verb("info:from_rllib", "translate a YAML file of RLlib, and say what has no equivalent"),
}
_LEVELS = {
    "make": Verb("levels:make", "generate levels ahead, on all cores", settings="cli.envs:CheckConfig"),
    "info": Verb("levels:info", "what a folder of levels holds"),
    "import": Verb("levels:import_", "take over a published cache of DeepMind Lab's levels"),
    "verify": Verb("levels:verify", "compare every level with its checksum"),
}
_ENVS = {
    "check": Verb("envs:check", "find out what is wrong with an environment", settings="cli.envs:CheckConfig"),
    "play": Verb("play:play", "play one yourself, with the keyboard", settings="cli.envs:CheckConfig"),
}

VERBS: dict[str, Verb] = {
    "train": Verb("train:train", "train an agent", settings=_TRAIN),
    "join-learner": Verb("train:join_learner", "learn together with a training on another machine"),
    "eval": Verb("evaluate:evaluate", "evaluate policies of any kind side by side, with videos", settings=_TRAIN),
    "match": Verb("match:match", "let policies play each other: ratings and win matrix", settings=_TRAIN),
    "export": Verb("export:export", "write a policy for other programs (ONNX, safetensors, torch)"),
    "hub": Verb("", "push policies and stores to the Hugging Face Hub, pull them", _HUB),
    "watch": Verb("watch:watch", "watch an agent play, in a window, the browser or the terminal", settings=_TRAIN),
    "collect": Verb("collect:collect", "write episodes of a policy into a store", settings=_TRAIN),
    "data": Verb("", "look at stores, check, repair, merge, split and convert them", _DATA),
    "offline": Verb("offline:offline", "learn a policy from a store", settings="runs.settings.offline:OfflineConfig"),
    "world": Verb("", "world models: encoder, latents, dynamics, controller, dream", _WORLD),
    "bench": Verb("bench:bench", "measure speed", settings=_TRAIN),
    "launch": Verb("", "plan, start, watch and cancel many runs", _LAUNCH),
    "cluster": Verb("", "start clusters, join them, see how nodes stand", _CLUSTER),
    "runs": Verb("runs:list_all", "list runs, compare two of them, remove some", _RUNS),
    "models": Verb("models:list_all", "list trained models, with how each was made"),
    "checkpoint": Verb("", "list, save, prune and export what a run has saved", _CHECKPOINT),
    "view": Verb("view:view", "see runs, curves and episodes in the browser"),
    "tb": Verb("tb:tb", "one TensorBoard over the runs that match"),
    "diary": Verb("diary:diary", "the history of an experiment's runs"),
    "report": Verb("report:report", "curves, best settings and importance of an experiment"),
    "envs": Verb("envs:list_envs", "list the environments, check one, play one", _ENVS),
    "levels": Verb("", "generate levels ahead, look at them, import and verify them", _LEVELS),
    "config": Verb("info:config", "explain the keys of the configuration", _CONFIG),
    "completion": Verb("completion:completion", "what bash or zsh needs to complete all this"),
    "doctor": Verb("doctor:doctor", "look whether this machine is fit for a run"),
}

MOVED = {("offline-eval",): "eval", ("world", "eval"): "eval", ("world", "film"): "world video"}
"""What a verb was called -> what to type instead of it."""


def find(words: Sequence[str]) -> tuple[tuple[str, ...], Verb, list[str]]:
    """Find the verb that a command line names: the words of its name, the verb, and the words behind them."""
    verb, depth = Verb("", "", VERBS), 0
    while depth < len(words) and words[depth] in verb.verbs:
        verb, depth = verb.verbs[words[depth]], depth + 1
    return tuple(words[:depth]), verb, list(words[depth:])


def command(name: Sequence[str]) -> str:
    """Return how a verb is typed: ``rollmill data info``."""
    return " ".join(("rollmill", *name))


def all_verbs() -> Iterator[tuple[tuple[str, ...], Verb]]:
    """Yield every verb with its name, those of a verb right behind it."""
    for name, verb in VERBS.items():
        yield (name,), verb
        yield from (((name, inner), one) for inner, one in verb.verbs.items())
