"""Matches: both seatings of the same games, whose hands lanes are in, what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from running import SERIAL, SUPPORT, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import CheckpointError, ConfigError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.evaluate.play import Metrics
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.results import MatchResult
from rollmill.runs.match.run import match

PLAYERS = SUPPORT / "game_players.py"
BOLD, TWIN, TIMID, COUNTING = (
    f"{PLAYERS}:{name}" for name in ("last_allowed", "also_last_allowed", "first_allowed", "Counting")
)
KUHN = ("env=kuhn_poker",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A short training of Kuhn poker with a memory, only to be looked at."""
    words = (
        "env=kuhn_poker",
        "model.memory=gru",
        "stop.frames=300",
        "checkpoints.milestone_frames=100",
        "checkpoints.every_seconds=0.01",
    )
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1]


def play(*players: object, **options: object) -> MatchResult:
    given = {"games": 40, "workers": 1, "overrides": KUHN, **options}
    return match([str(player) for player in players], MatchOptions(**given))  # type: ignore[arg-type]


def test_whoever_always_wins_is_best() -> None:
    found = play(TIMID, BOLD)
    assert found.best == "game_players.py:last_allowed"
    assert found.table.wins.tolist() == [[0, 0], [40, 0]], "who folds to every bet loses every game"
    assert found.table.margin.tolist() == [[0, -80], [80, 0]], "one chip from each to the other"
    assert found.ratings.elo[1] - found.ratings.elo[0] > 400


def test_a_statistic_of_the_episode_may_decide() -> None:
    """Rewards are the opposite of points here: who is rewarded most has lost every game."""
    players = [f"{PLAYERS}:{name}" for name in ("rock", "paper")]
    env = ("env=duel_envs:Shaped", "env.args.more=3")
    for workers in (1, 2):
        found = play(*players, overrides=env, games=10, result="points", workers=workers)
        assert found.table.wins.tolist() == [[0, 0], [10, 0]]
        assert found.table.margin[1, 0] < 0, "the margin is that of returns"
        assert "Games are decided by the higher points, the margin is that of returns" in found.text()
        assert found.to_dict()["result"] == "points"
    assert play(*players, overrides=env, games=10, result="-points").best == "game_players.py:rock"
    assert play(*players, overrides=env, games=10).best == "game_players.py:rock"
    with pytest.raises(ConfigError, match=r"--result rounds: .* not one of every agent"):
        play(*players, overrides=env, result="rounds")


def test_a_statistic_that_is_missing_is_found_at_the_latest_in_the_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.runs.match.run.episode_statistics", lambda *words: None)
    players = [f"{PLAYERS}:{name}" for name in ("rock", "paper")]
    with pytest.raises(ConfigError, match=r"--result rounds: the environment tells no"):
        play(*players, overrides=("env=duel_envs:Shaped",), games=2, result="rounds")


def test_both_seatings_of_the_same_games() -> None:
    """Two players who do the same: whoever gets the better cards in one game gives them away in the other."""
    found = play(BOLD, TWIN, games=60, envs=7)
    assert found.table.points.tolist() == [[0, 30], [30, 0]]
    assert found.table.first[1] == 60
    assert found.table.margin[0, 1] == 0


def test_hands_change_at_the_beginning_of_episodes_only(run: RunFolder) -> None:
    found = play(run.path, COUNTING, BOLD, envs=5)
    assert found.games == 120
    assert found.table.lost == 0
    assert (found.table.games == [[0, 40, 40], [40, 0, 40], [40, 40, 0]]).all()


def test_the_same_seed_gives_the_same_games(run: RunFolder) -> None:
    one, two = (play(run.path, "random", workers=workers, envs=4).to_dict() for workers in (1, 2))
    assert one == two
    assert play(run.path, "random", envs=4, seed=2).to_dict() != one


def test_every_checkpoint_of_a_run_is_a_player(run: RunFolder) -> None:
    found = play(run.path, "random", all_checkpoints=True, games=4, overrides=())
    count = len(Checkpoints(run.checkpoints).list())
    assert count > 1
    assert len(found.players) == count + 1
    assert len(set(found.names)) == count + 1
    assert found.env == "kuhn_poker", "the run says where they play"


def test_single_files_may_play_beside_all_of_a_run(run: RunFolder, tmp_path: Path) -> None:
    newest = Checkpoints(run.checkpoints).newest()
    assert newest is not None
    other = shutil.copy(newest.path, tmp_path / "other.ckpt")
    found = play(run.path, other, all_checkpoints=True, games=2, overrides=())
    assert len(found.players) == len(Checkpoints(run.checkpoints).list()) + 1


def test_a_cycle_is_pointed_out() -> None:
    three = [f"{PLAYERS}:{name}" for name in ("rock", "paper", "scissors")]
    found = play(*three, overrides=("env=matrix_game",), games=20)
    assert found.table.points.tolist() == [[0, 0, 20], [20, 0, 0], [0, 20, 0]]
    assert [pair[:2] for pair in found.surprises()] == [(0, 2), (1, 0), (2, 1)]
    assert "depends on the opponent" in found.text()


def test_sides_say_who_has_which_seat() -> None:
    """Three agents who repeat numbers: one player has two seats, the other one, and they change places."""
    own = ("env=toy_agents", "env.args.agents=3")
    found = play("random", "smoothed-random", overrides=own, sides=(0, 1, 1), games=10)
    assert found.games == 10
    with pytest.raises(ConfigError, match=r"--sides 0 1: toy_agents has 3 seats"):
        play("random", "smoothed-random", overrides=own, sides=(0, 1))
    with pytest.raises(ConfigError, match=r"--sides 0 0 0: "):
        play("random", "smoothed-random", overrides=own, sides=(0, 0, 0))


def test_progress_counts_games() -> None:
    seen: list[Metrics] = []
    match([BOLD, TIMID], MatchOptions(games=6, workers=1, overrides=KUHN), seen.append)
    assert (seen[-1].done, seen[-1].wanted, seen[-1].unit) == (6, 6, "games")


@pytest.mark.parametrize(
    ("players", "overrides", "message"),
    [
        ((BOLD,), KUHN, "a match takes two players at least"),
        ((BOLD, TIMID), (), "which environment"),
        (("random", "smoothed-random"), ("env=CartPole-v1",), "CartPole-v1 has one agent, .*rollmill eval"),
        (("random", "policy:cartpole"), KUHN, r"cartpole.*: the policy was trained in CartPole-v1"),
        (("random", "nobody"), KUHN, "nobody: expected random"),
        (("random", "smoothed-random"), ("env=kuhn_poker", "env.vector=true"), "env.vector"),
        (("random", "smoothed-random"), ("env=toy_pair",), "toy_pair is a suite: name the task"),
    ],
)
def test_what_is_no_match_is_refused(players: tuple[str, ...], overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        play(*players, overrides=overrides)


def test_nobody_plays_against_themselves(run: RunFolder) -> None:
    newest = Checkpoints(run.checkpoints).newest()
    assert newest is not None
    with pytest.raises(ConfigError, match="is given twice"):
        play(run.path, newest.path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": 0}, "--games"),
        ({"envs": 0}, "--envs"),
        ({"workers": 3, "envs": 2}, "--workers 3"),
        ({"seed": -1}, "--seed"),
        ({"best": True, "all_checkpoints": True}, "exclude each other"),
        ({"report": Path("page.txt")}, "ends in .html"),
        ({"best": True}, "--best chooses among a run's checkpoints"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str, run: RunFolder) -> None:
    newest = Checkpoints(run.checkpoints).newest()
    assert newest is not None
    with pytest.raises(ConfigError, match=message):
        play(newest.path, "random", **options)


def test_files_are_tried_before_the_games(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="--out"):
        play(BOLD, TIMID, out=tmp_path / "file" / "x.json")
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        play(tmp_path / "nothing", TIMID)


def test_a_page_of_another_kind_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    made = play(BOLD, TIMID, games=2).write_page(page)
    assert page.read_text() == "mine"
    assert made == tmp_path / "page-match.html"
