"""The ViZDoom adapter against the bare game, and its engine against crashes, kills and leftovers."""

import contextlib
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Array, Obs
from rollmill.core.janitor import SCRATCH_VARIABLE, TOKEN_VARIABLE, sweep_stale_segments
from rollmill.core.janitor_main import SEGMENT_KINDS, vizdoom_instance
from rollmill.envs.batch import random_actions
from rollmill.envs.vizdoom import engine as vizdoom_engine
from rollmill.envs.vizdoom import env as vizdoom_module
from rollmill.envs.vizdoom import launcher as vizdoom_launcher
from rollmill.envs.vizdoom.env import DoomEnv
from rollmill.envs.vizdoom.scenarios import SCENARIOS

vizdoom = pytest.importorskip("vizdoom")
pytest.importorskip("cv2")
pytestmark = pytest.mark.vizdoom

DATA = "vizdoom-data"
"""What the engines of a run share, in its scratch folder."""


def new_obs(height: int = 72, width: int = 128) -> Obs:
    return {"obs": np.zeros((1, height, width, 3), np.uint8)}


def random_choices(count: int, actions: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(actions, size=(count, 1))


@pytest.fixture
def basic() -> Iterator[DoomEnv]:
    env = DoomEnv(scenario="basic")
    yield env
    env.close()


@pytest.fixture
def gathering() -> Iterator[DoomEnv]:
    env = DoomEnv(scenario="health_gathering_supreme")
    yield env
    env.close()


def pretend_run(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    """Have engines start as in a run with this scratch folder."""
    monkeypatch.setenv(SCRATCH_VARIABLE, str(scratch))
    monkeypatch.setenv(TOKEN_VARIABLE, "a run")


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """The limit only ends a test that is broken."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def segments_of(env: DoomEnv) -> list[Path]:
    return [Path(f"/dev/shm/ViZDoom{kind}{env._game.get_instance_id()}") for kind in SEGMENT_KINDS]


# -- what an agent sees -----------------------------------------------------------------------------


def test_spec_follows_the_conventions() -> None:
    basic, gathering = DoomEnv().spec, DoomEnv(scenario="health_gathering_supreme", frame_skip=2).spec
    assert basic.name == "doom_basic"
    assert basic.observation[0].shape == (72, 128, 3)
    assert basic.observation[0].is_image
    assert basic.action.nvec == (4,)
    assert basic.frames_per_step == 4
    assert gathering.action.nvec == (5,)
    assert gathering.frames_per_step == 2


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_of_the_table_plays(name: str) -> None:
    env, obs = DoomEnv(scenario=name), new_obs()
    try:
        env.reset(0, obs)
        rng = np.random.default_rng(0)
        for _ in range(8):
            env.step(random_actions(env.spec, rng, obs, 1), obs)
    finally:
        env.close()
    assert env.spec.name == f"doom_{name}"
    assert obs["obs"].std() > 1


def test_the_screen_is_written_straight_into_the_slot(basic: DoomEnv) -> None:
    rows = np.zeros((3, 72, 128, 3), np.uint8)
    basic.reset(5, {"obs": rows[1:2]})
    assert rows[1].std() > 1
    assert not rows[[0, 2]].any()
    screen = basic.render()
    assert screen is not None
    assert screen.shape == (120, 160, 3)
    # nearest pixels: every row and column of the small image is one of the large image's
    columns = np.arange(128) * 160 // 128
    assert (rows[1] == screen[np.arange(72) * 120 // 72][:, columns]).all()


def test_the_image_is_rgb(basic: DoomEnv) -> None:
    obs = new_obs()
    basic.reset(0, obs)
    red, _, blue = obs["obs"].reshape(-1, 3).mean(axis=0)
    assert red > blue + 10  # a room of brown stone


def test_sizes_can_be_chosen() -> None:
    env, obs = DoomEnv(width=80, height=60, render_width=320, render_height=240), new_obs(60, 80)
    assert env.render() is None
    env.reset(0, obs)
    env.close()
    screen = env.render()
    assert screen is not None
    assert screen.shape == (240, 320, 3)
    assert obs["obs"].std() > 1


# -- rewards and ends -------------------------------------------------------------------------------


def bare_game(scenario: str) -> Any:
    """The scenario in a plain DoomGame, with its own timeout; our settings written out again."""
    game = vizdoom.DoomGame()
    game.load_config(str(Path(vizdoom.scenarios_path) / f"{scenario}.cfg"))
    game.set_window_visible(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    if scenario == "health_gathering_supreme":
        button = vizdoom.Button
        game.set_available_buttons([button.MOVE_FORWARD, button.MOVE_BACKWARD, button.TURN_RIGHT, button.TURN_LEFT])
        game.set_living_reward(0.01)
        game.set_death_penalty(0)
    game.init()
    return game


def play_bare(game: Any, seed: int, choices: Array) -> tuple[list[float], list[Array], bool]:
    """Rewards, screens, and whether the timeout ended it; medkits counted by health."""
    game.set_seed(seed)
    game.new_episode()
    rewards, screens = [], [game.get_state().screen_buffer]
    buttons = game.get_available_buttons_size()
    health = game.get_game_variable(vizdoom.GameVariable.HEALTH)
    for choice in choices[:, 0]:
        reward = game.make_action([float(choice == 1 + b) for b in range(buttons)], 4)
        now = game.get_game_variable(vizdoom.GameVariable.HEALTH)
        reward += float(now > health and buttons == 4)
        health = now
        rewards.append(reward)
        if game.is_episode_finished():
            break
        screens.append(game.get_state().screen_buffer)
    return rewards, screens, game.is_episode_timeout_reached()


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize("scenario", ["basic", "health_gathering_supreme"])
def test_episodes_are_those_of_the_bare_game(
    scenario: str, unpacked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``unpacked``: the engine has its data as within a run."""
    monkeypatch.chdir(tmp_path)  # the bare game litters
    if unpacked:
        pretend_run(monkeypatch, tmp_path)
    game, env, obs = bare_game(scenario), DoomEnv(scenario=scenario), new_obs()
    ends = set()
    for seed in range(8):
        choices = random_choices(600, env.spec.action.nvec[0], seed)
        rewards, screens, timeout = play_bare(game, seed, choices)
        env.reset(seed, obs)
        for t, (choice, reward) in enumerate(zip(choices, rewards)):
            screen = env.render()
            assert screen is not None
            assert (screen == screens[t]).all()
            ours, terminated, truncated, _ = env.step(choice, obs)
            assert ours == pytest.approx(reward)
            assert (terminated or truncated) == (t == len(rewards) - 1)
        assert truncated == timeout
        ends.add((terminated, truncated))
    game.close()
    env.close()
    assert (tmp_path / DATA).exists() == unpacked
    assert ends == ({(True, False), (False, True)} if scenario == "basic" else {(True, False)})


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 75), (7, 43)])
def test_the_timeout_truncates_at_its_tic(frame_skip: int, steps: int) -> None:
    env, obs = DoomEnv(scenario="basic", frame_skip=frame_skip), new_obs()
    env.reset(0, obs)
    total = 0.0
    for t in range(steps):
        before = obs["obs"].copy()
        reward, terminated, truncated, _ = env.step(np.array([1 + t % 2]), obs)
        total += reward
        assert not terminated
        assert truncated == (t == steps - 1)
    env.close()
    assert total == -300.0
    assert (obs["obs"] != before).any()  # the true last screen, not the one before


def test_a_kill_terminates_and_shows_the_last_screen_seen(basic: DoomEnv) -> None:
    obs = new_obs()
    for seed in range(50):
        basic.reset(seed, obs)
        ended, reward = False, 0.0
        for choice in random_choices(75, 4, seed):
            before = obs["obs"].copy()
            reward, terminated, truncated, _ = basic.step(choice, obs)
            ended = terminated or truncated
            if ended:
                break
        if terminated:
            break
    assert terminated
    assert not truncated
    assert reward > 90
    assert (obs["obs"] == before).all()


def test_medkits_are_counted_and_rewarded(gathering: DoomEnv) -> None:
    obs = new_obs()
    medkits = 0.0
    for seed in range(6):
        gathering.reset(seed, obs)
        rewards, terminated = [], False
        for choice in random_choices(525, 5, seed):
            reward, terminated, _, info = gathering.step(choice, obs)
            rewards.append(reward)
            if terminated:
                break
        assert terminated  # random walkers starve
        found = info["episode_stats"]["medkits"]
        assert sum(reward > 0.5 for reward in rewards) == found
        assert sum(rewards) - found == pytest.approx(0.04 * len(rewards), abs=0.04)
        medkits += found
    assert medkits > 0


# -- seeds ------------------------------------------------------------------------------------------


def digest(env: DoomEnv, seed: int) -> str:
    """A fingerprint of all frames and rewards of an episode with fixed random actions."""
    obs, sums, rng = new_obs(), hashlib.sha256(), np.random.default_rng(seed)
    env.reset(seed, obs)
    sums.update(obs["obs"].tobytes())
    for _ in range(40):
        reward, terminated, truncated, _ = env.step(random_actions(env.spec, rng, obs, 1), obs)
        sums.update(obs["obs"].tobytes() + repr((reward, terminated, truncated)).encode())
        if terminated or truncated:
            break
    return sums.hexdigest()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seed_and_actions_fix_the_episode(scenario: str) -> None:
    env, obs = DoomEnv(scenario=scenario), new_obs()
    first = digest(env, 7)
    other = digest(env, 8)
    env.reset(1, obs)  # an episode left at once, and one left in the middle
    env.reset(2, obs)
    env.step(random_actions(env.spec, np.random.default_rng(0), obs, 1), obs)
    again = digest(env, 7)
    env.close()
    reopened = digest(env, 7)
    env.close()
    assert first == again == reopened
    assert first != other


@pytest.mark.parametrize("scenario", ["basic", "deathmatch"])
def test_an_episode_is_the_same_in_another_process(scenario: str) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_env import DoomEnv, digest\n"
        f"env = DoomEnv(scenario={scenario!r})\n"
        "print(digest(env, 7)); env.close()\n"
    )
    fresh = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    env = DoomEnv(scenario=scenario)
    assert digest(env, 7) == fresh.strip()
    env.close()


# -- misuse -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "basik"}, "did you mean 'basic'"),
        ({"frame_skip": 0}, "frame_skip must be at least 1"),
        ({"width": 0}, "width must be at least 1"),
        ({"height": -1}, "height must be at least 1"),
        ({"render_width": 128, "render_height": 72}, "cannot render 128x72.*160x120"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DoomEnv(**arguments)


@pytest.mark.parametrize("package", ["vizdoom", "cv2"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[vizdoom\]"'):
        DoomEnv()


def test_a_fresh_engine_takes_over_now_and_then_and_nothing_else_changes(
    basic: DoomEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines keep some memory of every episode for ever."""
    monkeypatch.setattr(vizdoom_module, "EPISODES_PER_ENGINE", 2)
    pids, played = [], []
    for episode in range(5):
        obs, rows = new_obs(), []
        basic.reset(episode % 2, obs)  # episodes 0, 2 and 4 are the first of their engines, and alike
        for action in random_choices(10, basic.spec.action.nvec[0], episode % 2):
            reward, terminated, _, _ = basic.step(action, obs)
            rows.append((reward, obs["obs"].tobytes()))
            if terminated:
                break
        pids.append(basic.engine_pid)
        played.append(rows)
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert pids[0] is not None
    assert not exists(pids[0]), "the old one is gone"
    assert played[0] == played[2] == played[4]
    assert played[1] == played[3]


def test_misuse_of_the_env_is_an_error(basic: DoomEnv) -> None:
    obs = new_obs()
    with pytest.raises(EnvError, match=r"call reset\(\) first"):
        basic.step(np.array([0]), obs)
    basic.reset(0, obs)
    for wrong in (-1, 4):
        with pytest.raises(EnvError, match=f"action {wrong} is not one of 0 to 3"):
            basic.step(np.array([wrong]), obs)
    with pytest.raises(EnvError, match=r"obs is uint8 \(70, 128, 3\), expected uint8 \(72, 128, 3\)"):
        basic.step(np.array([0]), new_obs(70))
    while not basic.step(np.array([0]), obs)[2]:
        pass
    with pytest.raises(EnvError, match=r"call reset\(\) first"):
        basic.step(np.array([0]), obs)
    basic.reset(0, obs)
    basic.close()
    with pytest.raises(EnvError, match=r"call reset\(\) first"):
        basic.step(np.array([0]), obs)


# -- the engine: no litter --------------------------------------------------------------------------


def test_nothing_is_written_into_the_current_folder(
    basic: DoomEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv(SCRATCH_VARIABLE, str(scratch))
    basic.reset(0, new_obs())
    assert basic.engine_pid is not None
    (folder,) = scratch.iterdir()
    assert Path(f"/proc/{basic.engine_pid}/cwd").readlink() == folder
    engine, segments = basic.engine_pid, segments_of(basic)
    assert all(path.exists() for path in segments)
    basic.close()
    basic.close()
    assert basic.engine_pid is None
    assert not exists(engine)
    assert not any(path.exists() for path in segments)
    assert list(scratch.iterdir()) == []
    assert list(here.iterdir()) == []


def test_engines_of_a_run_share_unpacked_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_run(monkeypatch, tmp_path)
    envs = [DoomEnv(scenario="basic") for _ in range(2)]
    for env in envs:
        env.reset(0, new_obs())
    data = tmp_path / DATA / "vizdoom.pk3"
    beside = Path(vizdoom.__file__).with_name("bots.cfg")
    assert data.with_name("bots.cfg").read_text() == beside.read_text(), "the engine looks for it beside its data"
    for env in envs:
        opened = {os.path.realpath(file) for file in Path(f"/proc/{env.engine_pid}/fd").iterdir()}
        assert str(data.resolve()) in opened
        env.close()
    with zipfile.ZipFile(data) as ours, zipfile.ZipFile(Path(vizdoom.__file__).with_name("vizdoom.pk3")) as packed:
        assert ours.namelist() == packed.namelist()
        assert all(ours.read(name) == packed.read(name) for name in packed.namelist())
        assert {entry.compress_type for entry in ours.infolist()} == {zipfile.ZIP_STORED}


def test_data_that_cannot_be_unpacked_is_read_packed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Path(vizdoom.__file__).with_name("vizdoom")
    packed = engine.with_name("vizdoom.pk3")
    assert vizdoom_engine.unpacked_data(engine, tmp_path / "missing") == packed
    assert vizdoom_engine.unpacked_data(tmp_path / "vizdoom", tmp_path) == tmp_path / "vizdoom.pk3", "nothing there"
    (tmp_path / "vizdoom.pk3").write_bytes(b"no archive")
    assert vizdoom_engine.unpacked_data(tmp_path / "vizdoom", tmp_path) == tmp_path / "vizdoom.pk3"
    assert [path.name for path in tmp_path.iterdir()] == ["vizdoom.pk3"]
    assert caplog.text.count("could not be unpacked") == 3


@pytest.mark.parametrize("own", [None, "glibc.malloc.hugetlb=0"])
def test_the_engine_waits_for_its_turn_and_asks_for_huge_pages(
    basic: DoomEnv, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    before = os.sched_getscheduler(0)
    basic.reset(1, new_obs())
    assert basic.engine_pid is not None
    assert os.sched_getscheduler(basic.engine_pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before
    variables = Path(f"/proc/{basic.engine_pid}/environ").read_bytes().decode().split("\0")
    (tunables,) = (line for line in variables if line.startswith("GLIBC_TUNABLES="))
    assert tunables.removeprefix("GLIBC_TUNABLES=") == own if own else "hugetlb=1" in tunables


def test_the_engine_of_a_process_that_steps_aside_does_so_too() -> None:
    code = (
        "import os; from rollmill.core.machine import step_aside; from rollmill.envs.vizdoom.env import DoomEnv; "
        "import numpy as np; step_aside(); env = DoomEnv(); "
        "env.reset(1, {'obs': np.zeros((1, 72, 128, 3), np.uint8)}); print(os.sched_getscheduler(env.engine_pid)); "
        "env.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) == os.SCHED_IDLE


def test_the_engine_keeps_no_inherited_file_and_its_parents_core(basic: DoomEnv) -> None:
    cores = os.sched_getaffinity(0)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        os.sched_setaffinity(0, {max(cores)})
        basic.reset(0, new_obs())
    finally:
        os.sched_setaffinity(0, cores)
    assert basic.engine_pid is not None
    assert os.sched_getaffinity(basic.engine_pid) == {max(cores)}
    pipe, held = os.readlink(f"/proc/self/fd/{writer}"), []
    for fd in Path(f"/proc/{basic.engine_pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            held.append(str(fd.readlink()))
    assert held
    assert pipe not in held
    os.close(reader)
    os.close(writer)


def test_an_override_file_is_refused(basic: DoomEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("_vizdoom.cfg").write_text("living_reward = 5\n")
    with pytest.raises(ConfigError, match="override the scenario"):
        basic.reset(0, new_obs())
    assert basic.engine_pid is None


def test_a_scratch_folder_that_runs_no_programs_is_refused(
    basic: DoomEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting needs a root that may")
    try:
        monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path))
        with pytest.raises(ConfigError, match="noexec"):
            basic.reset(0, new_obs())
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# -- the engine: crashes and kills ------------------------------------------------------------------


def test_a_missing_engine_is_named(basic: DoomEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path))
    monkeypatch.setattr(vizdoom_engine, "_engine_path", lambda: Path("/nowhere/vizdoom"))
    with pytest.raises(EnvError, match="/nowhere/vizdoom is not there"):
        basic.reset(0, new_obs())
    assert list(tmp_path.iterdir()) == []


def test_full_shared_memory_is_named(basic: DoomEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vizdoom_engine, "NEEDED_SHARED_MEMORY", 1 << 60)
    with pytest.raises(EnvError, match="/dev/shm is full"):
        basic.reset(0, new_obs())


def test_an_engine_that_does_not_start_is_explained(
    basic: DoomEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path))
    basic._game.set_doom_scenario_path("/nowhere.wad")
    with pytest.raises(EnvError, match=r"did not start: .*nowhere\.wad"):
        basic.reset(0, new_obs())
    assert list(tmp_path.iterdir()) == []


def test_a_dead_engine_is_reported_by_step_and_reset(basic: DoomEnv) -> None:
    obs = new_obs()
    basic.reset(0, obs)
    engine, segments = basic.engine_pid, segments_of(basic)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(EnvError, match=rf"engine \(pid {engine}\) failed in step"):
        basic.step(np.array([0]), obs)
    with pytest.raises(EnvError, match=rf"engine \(pid {engine}\) failed in reset"):
        basic.reset(0, obs)
    basic.close()
    assert not any(path.exists() for path in segments)
    basic.reset(0, obs)  # a closed env may start again


KILLS_AT_RANDOM = """
import os, random, signal, threading
import numpy as np
from rollmill.core.errors import EnvError
from rollmill.envs.vizdoom.env import DoomEnv
obs = {"obs": np.zeros((1, 72, 128, 3), np.uint8)}
for trial in range(8):
    env = DoomEnv(scenario="basic")
    env.reset(trial, obs)
    threading.Timer(random.random() * 0.02, os.kill, (env.engine_pid, signal.SIGKILL)).start()
    try:
        while True:
            if any(env.step(np.array([3]), obs)[1:3]):
                env.reset(0, obs)
    except EnvError as error:
        print(error)
    env.close()
"""


def test_an_engine_killed_at_any_moment_never_hangs_its_caller() -> None:
    done = subprocess.run([sys.executable, "-c", KILLS_AT_RANDOM], capture_output=True, text=True, timeout=500)
    # Nearly always every call raises; a lock that cannot be opened ends the process instead.
    assert done.stdout.count("failed in") == 8 or "left a call waiting for ever" in done.stderr


def test_a_call_that_can_never_return_ends_the_process() -> None:
    script = (
        "import numpy as np, os, time\n"
        "from rollmill.envs.vizdoom import engine as vizdoom_engine\n"
        "from rollmill.envs.vizdoom.env import DoomEnv\n"
        "vizdoom_engine.STUCK_TENTHS = 1\n"
        "env = DoomEnv(); env.reset(0, {'obs': np.zeros((1, 72, 128, 3), np.uint8)})\n"
        "env._call.active = True\n"
        "os.kill(env.engine_pid, 9); time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "died and left a call waiting for ever" in done.stderr


HOLD_A_LOCK = """
import ctypes, mmap, sys, time
libc, file = ctypes.CDLL(None), open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 0)
mutex = ctypes.byref(ctypes.c_char.from_buffer(memory, 64))
attributes = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(attributes)
libc.pthread_mutexattr_setpshared(attributes, 1)
libc.pthread_mutex_init(mutex, attributes)
libc.pthread_mutex_lock(mutex)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="knows glibc's mutex only")  # type: ignore[operator]
def test_locks_of_a_dead_process_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    path.write_bytes(bytes(4096))
    holder = subprocess.Popen([sys.executable, "-c", HOLD_A_LOCK, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    holder.kill()
    holder.communicate()
    mutex = ctypes.create_string_buffer(path.read_bytes()[64:128])
    assert ctypes.CDLL(None).pthread_mutex_trylock(mutex) != 0
    assert vizdoom_engine.open_locks(path, owner=holder.pid + 1) == 0
    assert vizdoom_engine.open_locks(path, owner=holder.pid) == 1
    assert vizdoom_engine.open_locks(path, owner=holder.pid) == 0
    mutex = ctypes.create_string_buffer(path.read_bytes()[64:128])
    assert ctypes.CDLL(None).pthread_mutex_trylock(mutex) == 0
    assert vizdoom_engine.open_locks(tmp_path / "gone", owner=holder.pid) == 0


def test_close_ends_an_engine_that_does_not_answer(basic: DoomEnv) -> None:
    basic.reset(0, new_obs())
    engine = basic.engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    basic.close()
    assert not exists(engine)


def test_the_engine_dies_with_its_killed_parent(tmp_path: Path) -> None:
    script = (
        "import numpy as np, time\n"
        "from rollmill.envs.vizdoom.env import DoomEnv\n"
        "env = DoomEnv(); env.reset(0, {'obs': np.zeros((1, 72, 128, 3), np.uint8)})\n"
        "print(env.engine_pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {SCRATCH_VARIABLE: str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    engine = int(parent.stdout.readline())
    (instance,) = vizdoom_instance(engine)
    segments = [Path(f"/dev/shm/ViZDoom{kind}{instance}") for kind in SEGMENT_KINDS]
    assert all(path.exists() for path in segments)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not exists(engine))
    for path in segments:
        with contextlib.suppress(FileNotFoundError):  # another run on this machine may sweep, too
            os.utime(path, (0, 0))  # spares waiting until they count as old
    sweep_stale_segments()
    assert not any(path.exists() for path in segments)


def test_the_engine_is_not_started_for_a_parent_already_gone(tmp_path: Path) -> None:
    nobody = 2**22 + 1  # above Linux's largest process id
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            vizdoom_launcher.__file__,
            tmp_path,
            str(nobody),
            "shared",
            "all",
            "/bin/true",
            "-",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"parent process {nobody} is gone" in done.stderr
    assert not (tmp_path / "engine.pid").exists()
