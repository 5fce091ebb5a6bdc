"""From a name to an environment."""

import contextlib
import inspect
import os
import socket
import sys
import textwrap
import tomllib
from pathlib import Path

import faulty_envs
import gymnasium as gym
import pytest
from running import ROOT

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.imports import import_object
from rollmill.envs.code_words import code_words
from rollmill.envs.gym_env import GymEnv
from rollmill.envs.make import NAMED, ROUTES, Entry, EnvInstance, Route, check_env_settings, find_route, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.toy import Target


@pytest.mark.parametrize("name", NAMED)
def test_every_named_env_resolves(name: str) -> None:
    assert bool(NAMED[name].extra) == bool(NAMED[name].package)
    check_env_settings(EnvSettings(id=name))
    assert NAMED[name].summary


def test_every_extra_of_an_environment_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {entry.extra for entry in NAMED.values() if entry.extra and not entry.install}
    assert extras <= project["optional-dependencies"].keys(), "an extra of NAMED is a line in pyproject.toml"


@pytest.mark.parametrize("name", [name for name, entry in NAMED.items() if not entry.extra])
def test_every_toy_can_be_built(name: str) -> None:
    env = make_env(EnvSettings(id=name))
    assert env.spec.name == name
    env.close()


def test_arguments_reach_the_constructor_over_the_fixed_ones() -> None:
    env = make_env(EnvSettings(id="toy_agents", args={"agents": 3, "length": 7}))
    assert isinstance(env, Target)
    assert (env.agents, env.length) == (3, 7)


def test_gymnasium_ids_work() -> None:
    env = make_env(EnvSettings(id="CartPole-v1"))
    assert isinstance(env, GymEnv)
    assert env.spec.name == "CartPole-v1"
    env.close()


@pytest.mark.parametrize(
    ("name", "hint"), [("toy_traget", "toy_target"), ("CartPol-v1", "CartPole-v1"), ("doom_bsic", "doom_basic")]
)
def test_a_misspelt_name_gets_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"env={name}: no such environment; .*{hint}") as failure:
        check_env_settings(EnvSettings(id=name))
    assert failure.value.exit_code == 2


def test_a_misspelt_argument_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"env\.args\.lengthh: toy_target takes no such argument; .*length"):
        check_env_settings(EnvSettings(id="toy_target", args={"lengthh": 3}))


def test_without_a_near_name_no_hint_is_given() -> None:
    with pytest.raises(ConfigError, match=r"env=qqqqqqqqqq: no such environment \(`rollmill envs` lists the names"):
        check_env_settings(EnvSettings(id="qqqqqqqqqq"))
    with pytest.raises(ConfigError, match=r"takes no such argument \(it takes: length, choices, agents, shift, "):
        check_env_settings(EnvSettings(id="toy_target", args={"qqqqqq": 1}))
    with pytest.raises(ConfigError, match=r"takes no such argument \(it takes: none\)"):
        check_env_settings(EnvSettings(id="faulty_envs:not_an_env", args={"qqqqqq": 1}))


def test_a_missing_extra_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r'ALE/Pong-v5 needs ale-py: pip install "rollmill\[atari\]"'):
        check_env_settings(EnvSettings(id="ALE/Pong-v5"))


def test_what_gymnasium_lacks_is_a_missing_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> gym.Env:
        raise gym.error.DependencyNotInstalled("pip install swimming-pool")

    monkeypatch.setitem(gym.registry, "Pool-v0", gym.envs.registration.EnvSpec("Pool-v0", entry_point=lacking))
    with pytest.raises(MissingExtraError, match="Pool-v0: pip install swimming-pool"):
        make_env(EnvSettings(id="Pool-v0"))


def test_a_constructor_that_lacks_a_module_says_so_in_one_line() -> None:
    with pytest.raises(MissingExtraError) as caught:
        make_env(EnvSettings(id="broken_envs:LacksModule"))
    assert str(caught.value) == "broken_envs:LacksModule: No module named 'no_such_module'"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Hopper-v5", "mujoco", "mujoco"),
        ("car_racing", "Box2D", "box2d"),
        ("doom_basic", "vizdoom", "vizdoom"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_a_missing_package_is_named_before_anything_is_built(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf'{name} needs {package}: pip install "rollmill\[{extra}\]"'):
        check_env_settings(EnvSettings(id=name))
    check_env_settings(EnvSettings(id="CartPole-v1"))


def test_an_adapter_need_not_say_how_its_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("broken_envs:LacksModule", "swims", extra="pool", package="no_such_module")
    monkeypatch.setitem(NAMED, "pool", entry)
    with pytest.raises(MissingExtraError, match=r'^pool needs no_such_module: pip install "rollmill\[pool\]"$'):
        make_env(EnvSettings(id="pool"))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.prefix)
def test_every_route_leads_to_an_adapter_that_takes_its_argument(route: Route) -> None:
    name = f"{route.prefix}rest"
    assert find_route(name) is route
    assert route.args(name) == {route.argument: "rest" if ":" in route.prefix else name}
    adapter = import_object(NAMED[route.entry].target, "env")
    assert route.argument in inspect.signature(adapter).parameters


def test_an_argument_that_an_adapter_cannot_do_without_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env\.args\.task: minigrid needs it"):
        make_env(EnvSettings(id="minigrid"))


def test_gymnasium_arguments_are_left_to_gymnasium() -> None:
    check_env_settings(EnvSettings(id="CartPole-v1", args={"sutton_barto_reward": True}))


# -- module:callable ----------------------------------------------------------------------------------------


def test_the_instance_is_handed_over_to_those_who_ask() -> None:
    envs = [make_env(EnvSettings(id="faulty_envs:Marker"), EnvInstance(index, index // 2)) for index in range(4)]
    assert [env._index for env in envs] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert isinstance(make_env(EnvSettings(id="faulty_envs:Zoo"), EnvInstance(3)), GymEnv)
    assert isinstance(make_env(EnvSettings(id="faulty_envs:Marker")), faulty_envs.Marker)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Env", "no module named 'no_such_module'"),
        ("faulty_envs.deeper:Env", "no module named 'faulty_envs.deeper'"),
        ("faulty_envs:Misbehaves", "Misbehave"),
        ("faulty_envs:NOT_CALLABLE", "NOT_CALLABLE"),
        (":Env", "expected"),
        ("faulty_envs:", "expected"),
    ],
)
def test_a_wrong_reference_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_env_settings(EnvSettings(id=name))


def test_a_module_that_lacks_something_itself_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_env.py").write_text("import needy\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"No module named 'needy' \(.*needy_env.py, line 1\)"):
        check_env_settings(EnvSettings(id="needy_env:Env"))


def test_the_current_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        from rollmill.envs.toy import Target

        def make(length: int = 3):
            return Target(length)
    """
    (tmp_path / "envs_of_mine.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    env = make_env(EnvSettings(id="envs_of_mine:make", args={"length": 4}))
    assert isinstance(env, Target)
    assert env.length == 4


def test_what_is_no_env_is_refused() -> None:
    with pytest.raises(ConfigError, match="faulty_envs:not_an_env built a object, which is neither"):
        make_env(EnvSettings(id="faulty_envs:not_an_env"))


def test_a_spec_of_another_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old gym's envs have all the methods, and a spec that is None."""

    class Old:
        spec = None

        def reset(self) -> None: ...

        def step(self, action: int) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(faulty_envs, "not_an_env", Old)
    with pytest.raises(ConfigError, match=r"built a Old, which is neither .* \(lacks: spec, an EnvSpec\)"):
        make_env(EnvSettings(id="faulty_envs:not_an_env"))


def test_a_mask_in_info_needs_an_info() -> None:
    with pytest.raises(ConfigError, match=r"env.mask_in_info: toy_masked is not a gymnasium.Env; .* 'action_mask'"):
        make_env(EnvSettings(id="toy_masked", mask_in_info=True))


def test_the_constructor_s_own_error_passes_through() -> None:
    with pytest.raises(RuntimeError, match="told to raise in constructor"):
        make_env(EnvSettings(id="faulty_envs:Misbehave", args={"where": "constructor"}))


# -- ports --------------------------------------------------------------------------------------------------


def test_ports_of_instances_are_free_and_distinct() -> None:
    with socket.socket() as taken:
        base = take_quiet_port(taken)
        ports = [EnvInstance(index).port(base) for index in range(20)]
        assert base not in ports
        assert len(set(ports)) == 20, "also where the first choice of one is taken"
        for port in ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))


def take_quiet_port(taken: socket.socket) -> int:
    """Below those that the system hands out by itself, so that no connection of another program gets in between."""
    for port in range(20_000 + os.getpid() * 37 % 9_000, 31_000):
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there is no free port")


def test_no_free_port_is_an_error() -> None:
    with pytest.raises(EnvError, match="no free TCP port"):
        EnvInstance(index=5).port(65534)


# -- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"max_episode_steps": -1}, {"fault_limit": -1}, {"fault_window": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EnvSettings(**wrong)  # type: ignore[arg-type]


# -- Gymnasium ids of other packages -----------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that registers an environment when it is imported, as highway-env and others do."""
    name = "roads_for_test"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('Roads/Motorway-v2', CartPoleEnv, max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_module_before_a_gymnasium_id_is_imported_first(package: str) -> None:
    settings = EnvSettings(id=f"{package}:Roads/Motorway-v2", args={"sutton_barto_reward": True})
    check_env_settings(settings)
    env = make_env(settings)
    assert isinstance(env, GymEnv)
    assert env.spec.name == settings.id
    assert env.env.spec is not None
    assert env.env.spec.max_episode_steps == 7
    env.close()
    assert ("id",) in code_words(settings), "importing it is running code: a file may not ask for that"
    with pytest.raises(ConfigError, match=r"Motorway-v3: no such environment; did you mean 'Roads/Motorway-v2'"):
        check_env_settings(EnvSettings(id=f"{package}:Roads/Motorway-v3"))
    with pytest.raises(ConfigError, match="no module named 'roads_for_tset'"):
        check_env_settings(EnvSettings(id="roads_for_tset:Motorway-v2"))
    with pytest.raises(ConfigError, match="has no vectorised form"):
        check_env_settings(EnvSettings(id=settings.id, vector=True))
