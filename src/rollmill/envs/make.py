"""From a name in the config to an environment: an explicit map, any Gymnasium id, or the user's code.

There is no registration by import: ``NAMED`` is the whole list, and a test resolves every entry. Names that begin
alike and belong to one adapter (``envpool:Pong-v5``) are the ``prefixes`` of its entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, EnvSpec
from rollmill.core.imports import import_module, import_object, is_installed
from rollmill.core.protocols import Env
from rollmill.core.text import nearest
from rollmill.envs.around import around, without_around
from rollmill.envs.levels.source import keep_levels, open_store
from rollmill.envs.levels.store import LevelStore
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.env import TaskEnv
from rollmill.envs.tasks.named import SUITES
from rollmill.envs.tasks.suite import task_number, tasks_of
from rollmill.envs.tasks.union import TaskSpace, union_of
from rollmill.envs.variables import EnvVariables

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class Entry:
    """One named environment: where its class is, its fixed arguments, the extra that brings it."""

    target: str
    summary: str
    args: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""
    package: str = ""
    """What the extra installs, by the name it is imported under."""
    install: str = ""
    """What to do instead, where no extra can bring it."""
    vector: str = ""
    """Where its vectorised form is, if it has one (``env.vector``)."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Names of its own, by how they begin: the argument that gets the rest, or the whole name if no colon ends that."""


NAMED: dict[str, Entry] = {
    "toy_target": Entry("rollmill.envs.toy:Target", "repeat the number shown; best return 10"),
    "toy_memory": Entry("rollmill.envs.toy:Memory", "remember the first observation; best return 1"),
    "toy_masked": Entry("rollmill.envs.toy:Masked", "best allowed action under a mask; best return 10"),
    "toy_image": Entry("rollmill.envs.toy:Image", "name the corner of a square; best return 10"),
    "toy_reach": Entry("rollmill.envs.toy:Reach", "continuous: move a point to the origin; best return near 0"),
    "toy_coin": Entry("rollmill.envs.toy:Coin", "short or long episodes by the toss of a coin; nothing to learn"),
    "toy_agents": Entry("rollmill.envs.toy:Target", "two agents, each repeats its number; best 10", {"agents": 2}),
    "kuhn_poker": Entry("rollmill.envs.games.env:TreeEnv", "two agents, three cards; best play loses 1/18 in seat 0"),
    "leduc_poker": Entry(
        "rollmill.envs.games.env:TreeEnv", "two agents, six cards, two rounds of betting", {"game": "leduc_poker"}
    ),
    "matrix_game": Entry(
        "rollmill.envs.games.env:TreeEnv",
        "two agents choose at once: env.args.game (biased_rps, two_by_two), or env.args.payoff",
        {"game": "biased_rps"},
    ),
    "connect_four": Entry("rollmill.envs.games.connect_four:ConnectFour", "two agents take turns, four in a line win"),
    "treasure_hunt": Entry(
        "rollmill.envs.treasure_hunt.env:TreasureHuntEnv",
        "collect treasures on a large walled map, reach the end in few steps",
        vector="rollmill.envs.treasure_hunt.env:TreasureHuntVector",
    ),
    "doom": Entry(
        "rollmill.envs.vizdoom.env:DoomEnv", "ViZDoom: env.args.scenario, any .cfg file", {}, "vizdoom", "vizdoom"
    ),
    **{
        f"doom_{scenario}": Entry(
            "rollmill.envs.vizdoom.env:DoomEnv", f"ViZDoom: {summary}", {"scenario": scenario}, "vizdoom", "vizdoom"
        )
        for scenario, summary in (
            ("basic", "shoot the monster"),
            ("health_gathering", "collect medkits on an acid floor"),
            ("health_gathering_supreme", "collect medkits in a maze"),
            ("my_way_home", "find the vest in a maze"),
            ("deadly_corridor", "reach the vest past the monsters"),
            ("defend_the_center", "shoot what comes near, with little ammunition"),
            ("defend_the_line", "shoot what comes near, more and more of it"),
            ("take_cover", "evade fireballs"),
            ("predict_position", "hit a moving monster with one rocket"),
            ("deathmatch", "find weapons, shoot monsters"),
        )
    },
    "doom_match": Entry(
        "rollmill.envs.vizdoom.match:DoomMatch",
        "ViZDoom, several players: env.args.agents, bots, wad, map",
        {},
        "vizdoom",
        "vizdoom",
    ),
    **{
        name: Entry("rollmill.envs.vizdoom.match:DoomMatch", f"ViZDoom: {summary}", args, "vizdoom", "vizdoom")
        for name, summary, args in (
            ("doom_duel", "two agents with rocket launchers", {"agents": 2}),
            (
                "doom_duel_bots",
                "an agent against a bot",
                {"agents": 1, "bots": 1, "wad": "multi_deathmatch.wad", "respawn_delay": 2},
            ),
            ("doom_deathmatch_bots", "an agent against seven bots", {"agents": 1, "bots": 7, "map": "map02"}),
            ("doom_deathmatch_full", "four agents and four bots", {"agents": 4, "bots": 4, "map": "map02"}),
        )
    },
    "atari": Entry("rollmill.envs.atari.env:AtariEnv", "Atari: env.args.game, any of ALE's", {}, "atari", "ale_py"),
    "atari_pong": Entry(
        "rollmill.envs.atari.env:AtariEnv", "Atari: table tennis; best return 21", {"game": "pong"}, "atari", "ale_py"
    ),
    "atari_breakout": Entry(
        "rollmill.envs.atari.env:AtariEnv", "Atari: break bricks with a ball", {"game": "breakout"}, "atari", "ale_py"
    ),
    "car_racing": Entry(
        "rollmill.envs.car_racing.env:CarRacingEnv", "CarRacing, drawn fast; best return near 930", {}, "box2d", "Box2D"
    ),
    "minigrid": Entry(
        "rollmill.envs.minigrid:MiniGridEnv",
        "MiniGrid: env.args.task, any of its ids",
        {},
        "minigrid",
        "minigrid",
        prefixes={"MiniGrid-": "task", "BabyAI-": "task"},
    ),
    "minigrid_memory": Entry(
        "rollmill.envs.minigrid:MiniGridEnv",
        "MiniGrid: remember an object, then choose the door beside its like; best return near 1",
        {"task": "MiniGrid-MemoryS7-v0", "actions": 3},
        "minigrid",
        "minigrid",
    ),
    "pettingzoo": Entry(
        "rollmill.envs.pettingzoo:PettingZooEnv",
        "PettingZoo: env.args.env, a module with parallel_env or env, or a callable",
        {},
        "pettingzoo",
        "pettingzoo",
        prefixes={"pettingzoo:": "env"},
    ),
    "mpe_simple_spread": Entry(
        "rollmill.envs.pettingzoo:PettingZooEnv",
        "PettingZoo: three agents share out three places",
        {"env": "mpe2.simple_spread_v3"},
        "pettingzoo",
        "mpe2",
    ),
    "openspiel": Entry(
        "rollmill.envs.open_spiel:OpenSpielEnv",
        "OpenSpiel: env.args.game, any of its games",
        {},
        "openspiel",
        "pyspiel",
        prefixes={"openspiel:": "game"},
    ),
    "envpool": Entry(
        "rollmill.envs.envpool:EnvPoolEnv",
        "EnvPool: env.args.task, any of its ids",
        {},
        "envpool",
        "envpool",
        vector="rollmill.envs.envpool:EnvPoolVector",
        prefixes={"envpool:": "task"},
    ),
    "mlagents": Entry(
        "rollmill.envs.mlagents.env:MlAgentsEnv",
        "Unity ML-Agents: env.args.build, a player built with the toolkit",
        {},
        "mlagents",
        "mlagents_envs",
        "python -m rollmill.envs.mlagents.install",
        prefixes={"mlagents:": "build"},
    ),
    "dmlab": Entry(
        "rollmill.envs.dmlab:DmLabEnv",
        "DeepMind Lab: env.args.level",
        {},
        "dmlab",
        "deepmind_lab",
        "build it from source, see docs/env_adapters.md",
        prefixes={"dmlab:": "level"},
    ),
}


@dataclass(frozen=True)
class Route:
    """Names that begin alike and belong to one adapter (``Entry.prefixes``)."""

    prefix: str
    entry: str
    argument: str

    def args(self, name: str) -> dict[str, Any]:
        return {self.argument: name.removeprefix(self.prefix) if self.prefix.endswith(":") else name}


ROUTES = tuple(Route(prefix, name, argument) for name, e in NAMED.items() for prefix, argument in e.prefixes.items())

FAMILIES = {"gymnasium.envs.box2d": ("Box2D", "box2d"), "gymnasium.envs.mujoco": ("mujoco", "mujoco")}
"""Gymnasium's own environments that need more than Gymnasium: (package, our extra)."""

GYMNASIUM = ("gymnasium",)
"""The package whose version decides the levels of Gymnasium's ids."""

_FOREIGN_ID = re.compile(r"[\w.]+:(?:[\w.-]+/)?[\w.-]+-v\d+", re.ASCII)

PORT_STRIDE = 1000
"""Ports between two tries of one instance: the tries of as many instances never meet."""


@dataclass(frozen=True)
class EnvInstance:
    """Which of the run's parallel environments this is; handed to constructors that ask for ``instance``."""

    index: int = 0
    worker: int = 0

    def port(self, base: int, host: str = "127.0.0.1", udp: bool = False) -> int:
        """Find a TCP or UDP port of ``host`` ("": all of them) that is free now: ``base + index``, or the first free
        one at ``PORT_STRIDE``, twice that ... from it, so that no other instance is given the same one."""
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        for port in range(base + self.index, 65536, PORT_STRIDE):
            with socket.socket(type=kind) as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
                return port
        raise EnvError(
            f"no free {'UDP' if udp else 'TCP'} port at {base + self.index} or any multiple of {PORT_STRIDE} from there"
        )


def make_env(
    settings: EnvSettings,
    instance: EnvInstance | None = None,
    variables: EnvVariables | None = None,
    spec: EnvSpec | None = None,
) -> Env:
    """Build one environment. Errors of the constructor itself pass through unchanged.

    ``spec``: what all tasks of a suite share, where that is known already; else each is built once to find out.
    """
    if not tasks_of(settings):
        return around(_make_single(settings, instance, variables), settings)
    shared = None if spec is None else without_around(spec, settings)
    return around(_make_task(settings, instance or EnvInstance(), variables, shared), settings)


def _make_task(
    settings: EnvSettings, instance: EnvInstance, variables: EnvVariables | None, spec: EnvSpec | None
) -> Env:
    """Build the environment of one task, in the spaces of all."""
    tasks, number = tasks_of(settings), task_number(settings, instance)
    spaces = []
    for task in tasks if spec is None else ():
        env = _make_single(task.settings(settings), instance, variables)
        spaces.append(TaskSpace(task.name, env.spec, tuple(getattr(env, "choice_names", ()))))
        env.close()
    env = _make_single(tasks[number].settings(settings), instance, variables)
    space = TaskSpace(tasks[number].name, env.spec, tuple(getattr(env, "choice_names", ())))
    try:
        return TaskEnv(env, space, number, spec or union_of(settings.id, spaces))
    except BaseException:
        env.close()
        raise


def _make_single(
    settings: EnvSettings, instance: EnvInstance | None = None, variables: EnvVariables | None = None
) -> Env:
    if settings.own_process:
        from rollmill.envs.own_process import OwnProcessEnv  # starts processes, which most runs need not import

        return OwnProcessEnv(settings, instance, variables)
    if settings.vector and _is_own(settings.id):
        raise ConfigError(f"env.vector: {settings.id} builds vector environments; there is no single one of it")
    maker = _find_maker(settings.id)
    kwargs = dict(settings.args)
    if "instance" in _parameters(maker):
        kwargs["instance"] = instance or EnvInstance()
    if settings.variables:
        kwargs["variables"] = variables or EnvVariables.fixed(settings.variables)
    store = level_store(settings) if settings.levels.folder else None
    if own_cache := store is not None and "levels" in _parameters(maker):
        kwargs["levels"] = store
    _check_required(settings.id, maker, kwargs)
    with _missing_is_named(settings.id):
        env = maker(**kwargs)
    made = _as_env(env, settings)
    return made if store is None or own_cache else keep_levels(made, store, settings.id)


def level_store(settings: EnvSettings) -> LevelStore:
    """Return the store in which the levels of this environment (no suite) are kept (``env.levels.folder``)."""
    route = find_route(settings.id)
    entry = NAMED.get(route.entry if route else settings.id)
    if entry is None:
        return open_store(settings, _find_maker(settings.id), settings.args, () if _is_own(settings.id) else GYMNASIUM)
    args = {**entry.args, **(route.args(settings.id) if route else {}), **settings.args}
    return open_store(settings, import_object(entry.target, "env"), args)


@contextlib.contextmanager
def _missing_is_named(name: str) -> Iterator[None]:
    """Say in one line what a constructor says about a package that is not there."""
    import gymnasium as gym

    try:
        yield
    except (ModuleNotFoundError, gym.error.DependencyNotInstalled) as error:
        _check_package(name)
        raise MissingExtraError(f"{name}: {error}") from error


def _check_required(name: str, maker: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Name a missing argument as the setting that it is."""
    for argument, p in _parameters(maker).items():
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is inspect.Parameter.empty and argument not in kwargs:
            raise ConfigError(f"env.args.{argument}: {name} needs it")


def make_vector_env(settings: EnvSettings, lanes: int, variables: EnvVariables | None = None) -> gym.vector.VectorEnv:
    """Build the vectorised form that the id brings, with ``lanes`` environments in it (``env.vector``)."""
    import gymnasium as gym

    given = {"variables": variables or EnvVariables.fixed(settings.variables)} if settings.variables else {}
    with _missing_is_named(settings.id):
        env = _find_vector_maker(settings.id)(num_envs=lanes, **vector_args(settings), **given)
    if not isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            f"env.vector: {settings.id} built a {type(env).__name__}, which is no gymnasium.vector.VectorEnv"
        )
    return env


def vector_args(settings: EnvSettings) -> dict[str, Any]:
    """Return the keyword arguments of the vectorised form. It must truncate by itself, so it is told the limit."""
    ours = settings.id in NAMED or find_route(settings.id) is not None or _is_own(settings.id)
    registered = 0 if ours else _registered(settings.id).max_episode_steps
    limits = [
        limit for limit in (settings.max_episode_steps, settings.args.get("max_episode_steps", registered)) if limit
    ]
    return {**settings.args, "max_episode_steps": min(limits)} if limits else dict(settings.args)


def episode_limit(settings: EnvSettings) -> int:
    """Return the steps after which every episode ends, if that is known before an environment is built; else 0."""
    args = {} if tasks_of(settings) else vector_args(settings)
    return int(args.get("max_episode_steps") or settings.max_episode_steps)


def check_env_settings(settings: EnvSettings) -> None:
    """Refuse an unknown name or argument, or a package that is not there, before any process starts."""
    tasks = tasks_of(settings)
    if settings.vector and tasks:
        raise ConfigError(f"env.vector: {settings.id} is a suite of single environments; set env.vector=false")
    for single in [task.settings(settings) for task in tasks] or [settings]:
        _check_single(single)


def _check_single(settings: EnvSettings) -> None:
    _check_package(settings.id)
    maker = _find_vector_maker(settings.id) if settings.vector else _find_maker(settings.id)
    parameters = _parameters(maker)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    given = {"num_envs"} if settings.vector else set()  # by whoever builds it
    known = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD and n not in given]
    if settings.vector and settings.max_episode_steps and not (takes_any or "max_episode_steps" in known):
        raise ConfigError(
            f"env.max_episode_steps: the vectorised form of {settings.id} takes no such limit; set env.vector=false"
        )
    if settings.variables and "variables" not in known:
        raise ConfigError(
            f"env.variables: {settings.id} takes no argument variables, so it would never see "
            f"{', '.join(settings.variables)}"
        )
    for name in settings.args:
        if name in given or (name not in known and not takes_any):
            hint = nearest(name, known)
            raise ConfigError(
                f"env.args.{name}: {settings.id} takes no such argument{f'; {hint}' if hint else ''}"
                f" (it takes: {', '.join(known) or 'none'})"
            )


def _check_package(name: str) -> None:
    """Say which extra a built-in environment lacks; what no extra can bring says what to do when it is built."""
    route = find_route(name)
    entry = NAMED.get(route.entry if route else name)
    if entry is not None and not entry.install and entry.package and not is_installed(entry.package):
        raise MissingExtraError(f'{name} needs {entry.package}: pip install "rollmill[{entry.extra}]"')


def _find_maker(name: str) -> Callable[..., Any]:
    if name in NAMED:
        entry = NAMED[name]
        return _with_defaults(import_object(entry.target, "env"), entry.args)
    route = find_route(name)
    if route is not None:
        entry = NAMED[route.entry]
        return _with_defaults(import_object(entry.target, "env"), {**entry.args, **route.args(name)})
    if _is_own(name):
        maker: Callable[..., Any] = import_object(name, "env")
        return maker
    return _gymnasium_maker(name)


def find_route(name: str) -> Route | None:
    """Return the adapter that names like this one belong to, if there is one."""
    return next((route for route in ROUTES if name.startswith(route.prefix)), None)


def _is_own(name: str) -> bool:
    """Return whether it is ``module:callable``; ``module:Env-v0`` is a Gymnasium id that the module registers."""
    return ":" in name and find_route(name) is None and _FOREIGN_ID.fullmatch(name) is None


def _with_defaults(maker: Callable[..., Any], args: Mapping[str, Any]) -> Callable[..., Any]:
    def make(**kwargs: Any) -> Any:
        return maker(**{**args, **kwargs})

    signature = inspect.signature(maker)
    given = [p.replace(default=args[n]) if n in args else p for n, p in signature.parameters.items()]
    make.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return make


def _registered(name: str) -> gym.envs.registration.EnvSpec:
    import gymnasium as gym

    if name.startswith("ALE/"):
        try:
            import ale_py
        except ModuleNotFoundError as error:
            raise MissingExtraError(f'{name} needs ale-py: pip install "rollmill[atari]"') from error
        gym.register_envs(ale_py)
    module, _, name = name.rpartition(":")
    if module:
        gym.register_envs(import_module(module, "env"))
    if name not in gym.registry:
        hint = nearest(name, [*NAMED, *SUITES, *gym.registry])
        raise ConfigError(
            f"env={name}: no such environment{f'; {hint}' if hint else ''} "
            "(`rollmill envs` lists the names; any Gymnasium id, module:Env-v0 or module:callable works too)"
        )
    spec = gym.registry[name]
    _check_family(spec)
    return spec


def _check_family(spec: gym.envs.registration.EnvSpec) -> None:
    """Say which extra is missing before anything is built."""
    for prefix, (package, extra) in FAMILIES.items():
        if str(spec.entry_point).startswith(f"{prefix}.") and not is_installed(package):
            raise MissingExtraError(f'{spec.id} needs {package}: pip install "rollmill[{extra}]"')


def _gymnasium_maker(name: str) -> Callable[..., Any]:
    import gymnasium as gym

    # Both wrappers cost time on every step. Our own checks cover the passive checker's cases, and what steps
    # an environment here has always reset it first, which is all that order enforcing is about.
    spec = dataclasses.replace(_registered(name), order_enforce=False)

    def make(**kwargs: Any) -> Any:
        return gym.make(spec, disable_env_checker=True, **kwargs)

    return make


def _find_vector_maker(name: str) -> Callable[..., Any]:
    """Return what is called with ``num_envs`` and the arguments; raises ConfigError if there is none."""
    import gymnasium as gym

    route = find_route(name)
    if name in NAMED or route is not None:
        entry = NAMED[route.entry if route else name]
        if not entry.vector:
            raise ConfigError(f"env.vector: {name} has no vectorised form of its own; set env.vector=false")
        return _with_defaults(import_object(entry.vector, "env"), {**entry.args, **(route.args(name) if route else {})})
    if _is_own(name):
        own: Callable[..., Any] = import_object(name, "env")
        if "num_envs" not in (parameters := _parameters(own)) and "kwargs" not in parameters:
            raise ConfigError(f"env.vector: {name} takes no num_envs, so it builds no vector environment")
        return own
    spec = _registered(name)
    point = spec.vector_entry_point
    if point is None:
        raise ConfigError(f"env.vector: {name} has no vectorised form (vector_entry_point); set env.vector=false")
    creator = point if callable(point) else import_object(point, "env.vector")

    def make(num_envs: int, **kwargs: Any) -> Any:
        return gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)

    make.__signature__ = inspect.signature(creator)  # type: ignore[attr-defined]
    return make


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some C callables have no signature: accept what the user gives
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _as_env(env: Any, settings: EnvSettings) -> Env:
    import gymnasium as gym

    from rollmill.envs.gym_env import GymEnv, GymLevelEnv

    if isinstance(env, gym.Env):
        kind = GymLevelEnv if env.has_wrapper_attr("save_level") else GymEnv
        return kind(env, name=settings.id, mask_in_info=settings.mask_in_info)
    missing = [name for name in ("reset", "step", "close") if not hasattr(env, name)]
    if not isinstance(getattr(env, "spec", None), EnvSpec):
        missing.insert(0, "spec, an EnvSpec")
    if missing:
        raise ConfigError(
            f"{settings.id} built a {type(env).__name__}, which is neither a gymnasium.Env "
            f"nor a rollmill Env (lacks: {', '.join(missing)})"
        )
    if settings.mask_in_info:
        raise ConfigError(
            f"env.mask_in_info: {settings.id} is not a gymnasium.Env; give its spec a field {MASK_FIELD!r} instead"
        )
    own: Env = env
    return own
