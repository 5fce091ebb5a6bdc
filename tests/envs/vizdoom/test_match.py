"""Doom matches: lanes, statistics and rewards, what happens to a match whose engines die or stop, and what is left."""

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import Drive
from running import wait_until

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.make import EnvInstance
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables
from rollmill.envs.vizdoom import bots, network
from rollmill.envs.vizdoom.bots import LEVELS, PER_LEVEL, choose_bots, write_bots
from rollmill.envs.vizdoom.engine import Engine
from rollmill.envs.vizdoom.maps import places_of
from rollmill.envs.vizdoom.match import DoomMatch
from rollmill.envs.vizdoom.network import PORT, choose_network
from rollmill.envs.vizdoom.party import Party
from rollmill.envs.vizdoom.score import TERMS, Score

vizdoom = pytest.importorskip("vizdoom")
pytest.importorskip("cv2")
pytestmark = pytest.mark.vizdoom

ONE_ENGINE = {"agents": 1, "bots": 1, "wad": "multi_deathmatch.wad"}


def new_obs(env: DoomMatch) -> Obs:
    return {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


def play(env: DoomMatch, obs: Obs, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [env.step(random_actions(env.spec, rng, obs, env.spec.agents), obs) for _ in range(steps)]


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def segments_of(pids: tuple[int, ...]) -> set[str]:
    """Names of the engines' segments in shared memory."""
    return {
        line.rpartition("/")[2]
        for pid in pids
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm/ViZDoom" in line
    }


def udp_ports(pid: int | str) -> set[int]:
    """Local UDP ports in the network that a process is in."""
    lines = Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines}


@pytest.fixture(scope="module")
def duel() -> Iterator[DoomMatch]:
    """One duel for all that leave it whole."""
    env = DoomMatch(agents=2, timeout=60, game_variables=["HEALTH", "DEATHCOUNT"])
    yield env
    env.close()


@pytest.fixture
def fragile() -> Iterator[DoomMatch]:
    env = DoomMatch(agents=2, deadline=1.0)
    yield env
    env.close()


# -- lanes -------------------------------------------------------------------------------------------


def test_every_agent_sees_and_does_its_own(duel: DoomMatch) -> None:
    obs = new_obs(duel)
    duel.reset(3, obs)
    assert obs["obs"].shape == (2, 72, 128, 3)
    assert not np.array_equal(obs["obs"][0], obs["obs"][1])
    idle, turning = np.zeros(6, np.int64), np.array([0, 0, 0, 0, 0, 20])
    idle[5] = 10  # the middle of the delta button's values
    before = obs["obs"].copy()
    for _ in range(3):
        duel.step(np.stack([idle, turning]), obs)
    changed = np.abs(obs["obs"].astype(int) - before).mean(axis=(1, 2, 3))
    assert changed[1] > 10 * changed[0], "only the second one has turned"
    assert obs["game_variables"][:, 0].tolist() == [100.0, 100.0]


def test_a_match_ends_for_all_at_its_time_and_tells_how_each_has_done(duel: DoomMatch) -> None:
    obs = new_obs(duel)
    for _ in range(2):  # engines go on from one match to the next
        duel.reset(0, obs)
        pids = duel.engine_pids
        rows = play(duel, obs, 15)
        assert [row[2].tolist() for row in rows] == [[False, False]] * 14 + [[True, True]]
        assert not any(row[1].any() for row in rows)
        stats = rows[-1][3]["episode_stats"]
        assert {name: np.shape(value) for name, value in stats.items()} == dict.fromkeys(stats, (2,))
        assert {"frags", "deaths", "place", "won", "reward_frag"} <= set(stats)
        returns = np.sum([row[0] for row in rows], axis=0)
        np.testing.assert_allclose(returns, sum(stats[f"reward_{name}"] for name in TERMS))
        with pytest.raises(EnvError, match=r"call reset\(\) first"):
            duel.step(np.zeros((2, 6), np.int64), obs)
        assert duel.engine_pids == pids
    shown = duel.render()
    assert shown is not None
    assert shown.shape == (120, 320, 3), "side by side"


def test_a_seed_and_the_actions_fix_a_match_against_bots() -> None:
    def match(seed: int) -> tuple[bytes, Array]:
        env = DoomMatch(**ONE_ENGINE)
        obs, seen = new_obs(env), b""
        env.reset(seed, obs)
        for reward, *_ in play(env, obs, 60):
            seen += obs["obs"].tobytes() + reward.tobytes()
        count = env._games[0].get_game_variable(vizdoom.GameVariable.PLAYER_COUNT)
        env.close()
        return seen, count

    one, again, other = match(1), match(1), match(2)
    assert one == again
    assert one != other
    assert one[1] == 2, "the bot has come"


def test_bots_leave_with_their_match() -> None:
    env = DoomMatch(agents=2, bots=3, bot_skill=80, timeout=40, map="map02")
    try:
        obs, counts = new_obs(env), []
        for seed in range(3):
            env.reset(seed, obs)
            play(env, obs, 10)
            counts.append(env._games[1].get_game_variable(vizdoom.GameVariable.PLAYER_COUNT))
        assert counts == [5, 5, 5]
    finally:
        env.close()


# -- safety ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signum", "who"), [(signal.SIGKILL, 0), (signal.SIGKILL, 1), (signal.SIGSTOP, 0)])
def test_a_match_that_loses_an_engine_is_over_and_the_next_one_is_whole(
    fragile: DoomMatch, signum: int, who: int
) -> None:
    obs, threads = new_obs(fragile), threading.enumerate()
    fragile.reset(0, obs)
    pids, segments = fragile.engine_pids, segments_of(fragile.engine_pids)
    assert segments
    threading.Timer(0.05, os.kill, (pids[who], signum)).start()
    with pytest.raises(EnvError, match=r"the match (broke|is over): .*(ended|did not answer|player)"):
        play(fragile, obs, 10_000)
    with pytest.raises(EnvError, match="the match is over"):
        fragile.step(np.zeros((2, 6), np.int64), obs)
    fragile.close()
    assert not any(map(exists, pids))
    assert not segments & set(os.listdir("/dev/shm"))
    assert not [t.name for t in threading.enumerate() if t not in threads and "oom-" in t.name]
    fragile.reset(0, obs)
    play(fragile, obs, 3)
    assert not set(pids) & set(fragile.engine_pids)


def test_an_engine_that_is_reaped_while_it_is_killed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """ViZDoom waits for its child, too, and may be the first."""
    engine = object.__new__(Engine)
    engine.pid = child = os.spawnlp(os.P_NOWAIT, "true", "true")

    def kill(pid: int, number: int) -> None:
        os.waitpid(pid, 0)
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    engine.kill()
    engine.kill()  # it is gone by now
    assert engine.pid == child


@pytest.mark.parametrize(("player", "raised"), [(1, EnvError), (0, SystemExit)])
def test_whatever_a_player_raises_ends_the_match_and_nobody_waits(player: int, raised: type[BaseException]) -> None:
    """Also what is no Exception: from a thread it comes home like one, from the caller's own it goes on."""
    env = DoomMatch(agents=2)
    env.reset(0, {field.name: np.zeros((2, *field.shape), field.dtype) for field in env.spec.observation})
    party = env._party
    assert party is not None

    def act(number: int) -> None:
        if number == player:
            raise SystemExit("told to")

    found: list[BaseException] = []

    def call() -> None:
        try:
            party.each(act)
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    threading.Thread(target=call, daemon=True).start()
    wait_until(lambda: found, what="an answer")
    assert isinstance(found[0], raised)
    with pytest.raises(EnvError, match=r"the match is over: .*told to"):
        party.each(lambda number: None)
    env.close()


def test_a_batch_reports_the_lost_match_and_goes_on() -> None:
    made: list[DoomMatch] = []

    def make(index: int) -> DoomMatch:
        made.append(DoomMatch(agents=2, timeout=12))
        return made[-1]

    drive = Drive(EnvSettings(id="doom_duel"), range(1), make=make).reset()
    drive.step(np.zeros((2, 6)))
    os.kill(made[-1].engine_pids[1], signal.SIGKILL)
    drive.walk(4)
    drive.batch.close()
    assert [fault.phase for fault in drive.faults] == ["step"]
    assert "the match " in drive.faults[0].error
    assert drive.column("valid", 0) == drive.column("valid", 1) == [True, False, True, True, True]
    assert [(lane, episode) for lane, episode, _ in drive.stats] == [(0, 1), (1, 1)], "each agent's own"
    assert drive.stats[0][2].keys() == drive.stats[1][2].keys() > {"frags", "place"}


def test_engines_die_with_their_killed_parent() -> None:
    script = (
        "import numpy as np, time\n"
        "from rollmill.envs.vizdoom.match import DoomMatch\n"
        "env = DoomMatch(); env.reset(0, {'obs': np.zeros((2, 72, 128, 3), np.uint8)})\n"
        "print(*env.engine_pids, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = tuple(map(int, parent.stdout.readline().split()))
    segments = segments_of(pids)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60  # only ends a test that is broken
    while any(map(exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for name in segments:
        Path("/dev/shm", name).unlink()


@pytest.mark.skipif(bool(network.why_no_namespace()), reason="no network namespaces here")
def test_nothing_of_a_match_listens_on_the_machine(duel: DoomMatch) -> None:
    duel.reset(0, new_obs(duel))
    host, guest = duel.engine_pids
    assert PORT in udp_ports(host)
    assert udp_ports(host) == udp_ports(guest)
    assert not udp_ports(host) & udp_ports("self")
    assert os.readlink(f"/proc/{host}/ns/net") != os.readlink("/proc/self/ns/net")


def test_without_a_network_of_its_own_a_match_takes_a_free_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network, "why_no_namespace", lambda: "forbidden here")
    network._warn.cache_clear()
    instance = EnvInstance(index=3)
    with socket.socket(type=socket.SOCK_DGRAM) as taken, caplog.at_level(logging.WARNING, "rollmill"):
        free = choose_network("auto", instance)
        taken.bind(("", free.port))
        assert choose_network("auto", instance).port == free.port + 1000
    assert not free.own
    assert caplog.text.count("listen on all interfaces") == 1
    assert "forbidden here" in caplog.text
    assert choose_network("shared", instance) == free, "nothing else has changed"
    with pytest.raises(EnvError, match=r"network=namespace: .* \(forbidden here\)"):
        choose_network("namespace", instance)


def test_a_match_on_the_shared_network_can_be_played() -> None:
    env = DoomMatch(agents=2, network="shared", timeout=8)
    try:
        obs = new_obs(env)
        env.reset(0, obs)
        assert len(play(env, obs, 2)) == 2
        assert os.readlink(f"/proc/{env.engine_pids[0]}/ns/net") == os.readlink("/proc/self/ns/net")
    finally:
        env.close()


def test_one_that_only_takes_long_to_start_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for matches that are under way."""
    waits = Party._wait_for_host
    monkeypatch.setattr(Party, "_wait_for_host", lambda self: (time.sleep(0.8), waits(self))[1])
    env = DoomMatch(agents=2, deadline=0.25, timeout=4)
    try:
        env.reset(0, new_obs(env))
    finally:
        env.close()


# -- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"agents": 9, "bots": 8}, "agents=9 and bots=8 are 17 players; Doom has 16"),
        ({"agents": 0}, "agents must be at least 1"),
        ({"bot_skill": 101}, "bot_skill must be between 0 and 100"),
        ({"wad": "nothing.wad"}, r"wad: there is no file .*nothing\.wad"),
        ({"map": "map09"}, "map: cig.wad has no map09 .there are: map01, map02."),
        (
            {"wad": "multi_duel.wad", "bots": 2},
            "map01 of multi_duel.wad has 2 places for players of a deathmatch, not 4",
        ),
        ({"wad": "deathmatch.wad"}, "map01 of deathmatch.wad has 0 places"),
        ({"wad": __file__}, "is no file of maps"),
        ({"network": "own"}, "network='own'"),
        ({"cores": "two"}, "cores='two'"),
        ({"deadline": 0}, "deadline must be positive"),
        ({"game_variables": ["HEALT"]}, "game_variables: there is no 'HEALT'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        DoomMatch(**args)
    assert "\n" not in str(refused.value)


def test_places_are_counted_in_both_formats_of_maps(tmp_path: Path) -> None:
    assert places_of(Path(vizdoom.scenarios_path, "cig.wad")) == {"map01": 25, "map02": 11}
    things = b"".join(struct.pack("<5h", 0, 0, 90, kind, 7) for kind in (1, 11, 2001, 11))
    entries = [(0, 0, b"E1M1"), (12, len(things), b"THINGS"), (0, 0, b"LINEDEFS")]
    listed = b"".join(struct.pack("<ii8s", *entry) for entry in entries)
    wad = tmp_path / "old.wad"
    wad.write_bytes(struct.pack("<4sii", b"PWAD", len(entries), 12 + len(things)) + things + listed)
    assert places_of(wad) == {"e1m1": 2}
    wad.write_bytes(wad.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="damaged"):
        places_of(wad)


def test_an_unknown_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="no reward term 'frags'"):
        DoomMatch(rewards={"frags": 1.0})


def test_bots_are_as_good_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def chosen(count: int, skill: float, rng: np.random.Generator) -> list[str]:
        asked.append((count, skill))
        return choose_bots(count, skill, rng)

    monkeypatch.setattr("rollmill.envs.vizdoom.match.choose_bots", chosen)
    source = np.array([30.0])
    variables = EnvVariables(("bot_skill",), source)
    env = DoomMatch(agents=1, bots=2, bot_skill=90, variables=variables)
    try:
        env.reset(0, new_obs(env))
        source[0] = 60.0
        variables.take()
        env.reset(0, new_obs(env))
    finally:
        env.close()
    assert asked == [(2, 30.0), (2, 60.0)]


def test_the_file_of_bots_has_one_for_every_choice(tmp_path: Path) -> None:
    write_bots(tmp_path / "bots.cfg")
    text = (tmp_path / "bots.cfg").read_text()
    names = [line.split()[1] for line in text.splitlines() if line.startswith(" name")]
    assert len(set(names)) == len(names) == len(LEVELS) * PER_LEVEL < 256
    rng = np.random.default_rng(0)
    for skill in (0.0, 37.0, 100.0):
        chosen = [choose_bots(15, skill, rng) for _ in range(200)]
        assert all(len(set(names_of_match)) == 15 for names_of_match in chosen)
        assert {name for match in chosen for name in match} <= set(names)
    levels = [int(name[3:6]) for _ in range(400) for name in choose_bots(7, 37.0, rng)]
    assert abs(np.mean(levels) - 37) < 1
    assert abs(np.std(levels) - bots.SPREAD) < 1


# -- the score ---------------------------------------------------------------------------------------


class Scripted:
    """What an engine says of one player, by the name of the variable."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {"HEALTH": 100.0}

    def get_game_variable(self, variable: Any) -> float:
        return self.values.get(variable.name, 0.0)


def test_the_score_counts_changes_and_not_what_a_new_life_brings() -> None:
    one, two = Scripted(), Scripted()
    one.values |= {"HITCOUNT": 40.0, "WEAPON2": 1.0}  # counted before this match began
    score = Score(vizdoom, [one, two], bots=1)
    score.begin()
    one.values |= {"HITCOUNT": 42.0, "DAMAGECOUNT": 500.0, "FRAGCOUNT": 1.0, "WEAPON5": 1.0, "HEALTH": 60.0}
    two.values |= {"HEALTH": 0.0, "DEAD": 1.0, "DEATHCOUNT": 1.0, "FRAGCOUNT": -1.0}
    first = score.step()
    two.values |= {"HEALTH": 100.0, "DEAD": 0.0, "WEAPON2": 1.0}
    second = score.step()
    assert {name: value.tolist() for name, value in first.items() if value.any()} == {
        "frag": [1.0, 0.0],
        "lost_frag": [0.0, -1.0],
        "death": [0.0, -1.0],
        "hit": [2.0, 0.0],
        "damage": [200.0, 0.0],
        "lost_health": [-40.0, 0.0],
        "weapon": [1.0, 0.0],
    }
    assert not any(value.any() for value in second.values()), "coming back is no reward"
    assert set(first) == set(TERMS)
    assert score.step() == {}
    one.values |= {"PLAYER1_FRAGCOUNT": 1.0, "PLAYER2_FRAGCOUNT": -1.0, "PLAYER3_FRAGCOUNT": 0.0}
    stats = {name: value.tolist() for name, value in score.statistics().items()}
    assert stats["place"] == [1.0, 3.0]
    assert stats["won"] == [1.0, 0.0]
    assert stats["damage"] == [500.0, 0.0]
    one.values["PLAYER3_FRAGCOUNT"] = 1.0
    assert score.statistics()["won"].tolist() == [0.0, 0.0], "a tie is no victory"
