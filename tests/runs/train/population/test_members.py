"""A population in a run: what its members are given, what is decided, what is written down, and going on with it."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from running import SERIAL, Run, assert_same, config_of, rows_of, saved_state, train_here

import rollmill
from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.errors import ConfigError, NonFiniteError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.shapes import check_shape
from rollmill.envs.probe import probe_here
from rollmill.learning.appo import Appo
from rollmill.learning.batch import Batch, Pieces
from rollmill.learning.guards import ValueCollapseError
from rollmill.models.acting.weights import tensors_of
from rollmill.pbt.evidence import Evidence, chance
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.lineage import ancestors, best_member, best_so_far, schedule
from rollmill.pbt.settings import PbtSettings
from rollmill.runs.checkpoints.export import export_policy
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import collect
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.population_checks import population_period, short_rounds
from rollmill.runs.settings.train import check
from rollmill.runs.train import run
from rollmill.runs.train.build import Parts, build_parts
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.population import ratings
from rollmill.runs.train.population.members import Members
from rollmill.runs.train.population.ratings import Ratings
from rollmill.sampling.sampler import EpisodeEnd

POPULATION = (
    *("env=toy_target", "pbt.members=4", "pbt.tune.learning.learning_rate=[1e-6,1e-1]", "pbt.period=200"),
    *("pbt.min_episodes=5", "pbt.episodes=20", "stop.frames=6000", "run.seed=2"),
)
RATE = "learning.learning_rate"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_here(tmp_path_factory.mktemp("whole"), *SERIAL, *POPULATION)[1]


# -- what is decided ------------------------------------------------------------------------------------------


def test_the_worst_go_on_from_the_best_and_every_decision_has_its_evidence(whole: RunFolder) -> None:
    entries = read_ledger(whole.path / NAME)
    begin, rounds = entries[0], entries[1:]
    assert [own[RATE] for own in begin["begin"]] == pytest.approx(np.geomspace(1e-6, 1e-1, 4))
    assert len(rounds) == 7  # of 1,500 frames that each member got, after every 200
    copies = [(entry, move) for entry in rounds for move in entry["moves"]]
    assert copies
    for entry, move in copies:
        taker, donor = (
            Evidence(own["objective"], own["error"], own["episodes"])
            for own in (entry["members"][move["member"]], entry["members"][move["from"]])
        )
        assert chance(donor, taker, pairs=4 * 3) < 0.05
        assert min(taker.episodes, donor.episodes) >= 5
        old, new = move["settings"][RATE]
        assert old == entry["members"][move["member"]]["settings"][RATE]
        taken = entry["members"][move["from"]]["settings"][RATE]
        assert new != taken
        assert taken / 1.5 <= new <= min(taken * 1.5, 0.1)
    state = saved_state(whole)
    assert state["population"]["copies"] == len(copies)
    assert rows_of(whole)[-1]["pbt/copies"] <= len(copies)


def test_members_share_frames_evenly_and_are_told_apart(whole: RunFolder) -> None:
    state, row = saved_state(whole), rows_of(whole)[-1]
    assert max(state["sampler"]["steps_of"]) - min(state["sampler"]["steps_of"]) <= 64
    best = int(row["pbt/best_member"])
    assert row["episode/return"] == row[f"policy{best}/episode/return"]
    assert sum(row[f"policy{k}/episode/count"] for k in range(4)) == row["episode/count"]
    assert {f"policy{k}/pbt/{RATE}" for k in range(4)} <= row.keys()


def test_the_best_member_plays_unless_another_is_asked_for(tmp_path: Path, whole: RunFolder) -> None:
    loaded = load_policy(whole.path)
    path = loaded.path
    assert path is not None
    state = load_checkpoint(path).state
    assert loaded.version == state["learners"][state["population"]["best"]]["version"]
    assert load_policy(whole.path, member=3).version == state["learners"][3]["version"]
    assert rollmill.load_policy(whole.path, member=3).version == state["learners"][3]["version"]
    # Members of one file have episodes of their own, or those of the second would count as there already.
    for member in (2, 3):
        done = collect(
            CollectOptions(tmp_path / "s", episodes=2, seed=0),
            overrides=("sampling.mode=serial",),
            given=load_policy(whole.path, member=member),
        )
    assert (done.metrics.episodes, done.total_episodes) == (2, 4)
    card = json.loads(export_policy(whole.path, "safetensors", tmp_path / "p.safetensors").card.read_text())
    assert card["policy"] == state["population"]["best"]
    with pytest.raises(ConfigError, match=r"has no member 4: there are 4"):
        load_policy(whole.path, member=4)


def test_lineage_and_schedule_follow_the_copies(whole: RunFolder) -> None:
    entries = read_ledger(whole.path / NAME)
    member = best_member(entries)
    line = ancestors(entries, member)
    assert len(line) == len(entries)
    assert line[-1] == member
    for entry, before, after in zip(entries[1:], line, line[1:], strict=False):
        taken = {move["member"]: move["from"] for move in entry["moves"]}
        assert before == taken.get(after, after)
    stretches = schedule(entries, member)
    assert stretches[0].settings == entries[0]["begin"][line[0]]
    assert stretches[-1].settings == saved_state(whole)["population"]["rules"]["settings"][member]
    assert [s.frames for s in stretches] == sorted(s.frames for s in stretches)
    assert all(own <= best for _, own, best in best_so_far(entries, member))


def test_the_page_shows_the_lineage_and_every_decision(whole: RunFolder) -> None:
    page = (whole.path / "report.html").read_text()
    copies = sum(move["from"] is not None for entry in read_ledger(whole.path / NAME)[1:] for move in entry["moves"])
    assert copies
    for words in ("<h2>Population</h2>", "Lineage", "Objective along the lineage", "Decisions of 7 rounds"):
        assert words in page, words
    assert page.count("from ") >= copies


class Settings(Observer):
    """The learning rate that every step was made with, and when."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        learner = run.parts.learners[0]
        assert isinstance(learner, Appo)
        self.seen.append((run.frames, learner.settings.learning_rate))


def test_the_way_of_the_best_member_can_be_gone_again_by_one_policy(tmp_path: Path, whole: RunFolder) -> None:
    entries, seen = read_ledger(whole.path / NAME), Settings()
    stretches = schedule(entries, best_member(entries))
    assert len(stretches) > 1
    replay = ("env=toy_target", f"pbt.replay={whole.path}", "stop.frames=1500")
    train_here(tmp_path, *SERIAL, *replay, observers=[seen])
    for (before, _), (frames, rate) in zip(seen.seen, seen.seen[1:], strict=False):
        allowed = {s.settings[RATE] for s in stretches if s.frames <= frames}
        assert rate in allowed
        if all(not before < s.frames <= frames for s in stretches):
            assert rate == [s.settings[RATE] for s in stretches if s.frames <= frames][-1]
    assert seen.seen[-1][1] == stretches[-1].settings[RATE]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("learning.lr_schedule=linear",), r"sets learning.learning_rate, which a schedule of this run moves already"),
        (("pbt.members=4",), r"replay trains one policy"),
        (("sampling.mode=async", "learning.ranks=2"), r"other ranks would go on with theirs: learning.ranks=2; use"),
    ],
)
def test_a_way_that_cannot_be_gone_is_refused(
    tmp_path: Path, whole: RunFolder, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path, *SERIAL, "env=toy_target", f"pbt.replay={whole.path}", *words)
    assert not (tmp_path / "x").exists()


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match="is no ledger of a population"):
        train_here(tmp_path, *SERIAL, "env=toy_target", f"pbt.replay={tmp_path / 'no.jsonl'}")
    with pytest.raises(ConfigError, match="there is no such run"):
        train_here(tmp_path, *SERIAL, "env=toy_target", f"pbt.replay={tmp_path / 'nowhere'}")


# -- objectives of these weights alone ----------------------------------------------------------------------------


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[Members, Parts]]:
    config = config_of(tmp_path, *SERIAL, *POPULATION)
    parts = build_parts(config, probe_here(config.env), os.environ)
    folder = RunFolder.create(tmp_path / "run", "new")
    made = Members(config, [x for x in parts.learners if isinstance(x, Appo)], parts.sampler, folder)
    made.begin(anew=True)
    yield made, parts
    parts.sampler.stop()
    folder.close()


def envs_of(parts: Parts, member: int) -> list[int]:
    """The environments in which a member plays; ``toy_target`` has one agent, so they are its lanes, too."""
    plan = parts.sampler.plan
    groups = [group for group, owner in enumerate(plan.policy_of_group) if owner == member]
    return [group * plan.lanes_per_group + lane for group in groups for lane in range(plan.lanes_per_group)]


def episodes(parts: Parts, member: int, value: float, first: int, number: int = 0, each: int = 5) -> list[EpisodeEnd]:
    """``each`` episodes of every environment of a member, from ``number`` on, begun at ``first`` frames."""
    rng, envs = np.random.default_rng(member), envs_of(parts, member)
    return [
        EpisodeEnd(env, number + k, value + 0.01 * float(rng.normal()), 10, True, member, 0, first)
        for k in range(each)
        for env in envs
    ]


def test_only_episodes_of_the_present_weights_count(members: tuple[Members, Parts]) -> None:
    made, parts = members
    assert len(envs_of(parts, 3)) == 2
    parts.sampler.inference.frames = 1000
    parts.sampler.steps_of = [200] * 4
    # Member 0 is the best, 3 the worst.
    made.ratings.add([e for k in range(4) for e in episodes(parts, k, -float(k), 10)])
    assert set(made.step()) == {2, 3}
    made.ratings.add(episodes(parts, 3, 100.0, 999, 5))  # begun by the weights that are gone
    made.ratings.add(episodes(parts, 3, 100.0, 1000, 10))  # decided before they were
    made.ratings.add(episodes(parts, 3, 100.0, -1, 15))  # nobody knows
    made.ratings.add([e for k in (0, 1) for e in episodes(parts, k, -float(k), 1001, 5)])
    parts.sampler.inference.frames = 2000
    parts.sampler.steps_of = [400] * 4
    assert made.step() == [1], "the worse of the two that are known"
    seen = made.ledger.entries[-1]
    assert [own["episodes"] for own in seen["members"]] == [10, 10, 0, 0]
    assert seen["kept"]["3"] == "0 episodes of its present weights, 5 are needed"
    made.ratings.add(episodes(parts, 0, 0.0, 2001, 10))
    made.ratings.add(episodes(parts, 3, 100.0, 2001, 20))
    parts.sampler.steps_of = [600] * 4
    assert made.step() == [0], "negative objectives are objectives"
    assert made.best == 3


def test_the_best_stays_the_best_while_its_episodes_are_under_way(members: tuple[Members, Parts]) -> None:
    made, parts = members
    parts.sampler.inference.frames, parts.sampler.steps_of = 1000, [200] * 4
    made.ratings.add([e for k in range(4) for e in episodes(parts, k, float(k), 10)])
    made.step()
    assert made.best == 3
    made.ratings.add([e for k in (0, 1, 2) for e in episodes(parts, k, float(k), 1001, 5)])
    made.ratings.add(episodes(parts, 3, 3.0, 1001, 5, each=2))
    parts.sampler.inference.frames, parts.sampler.steps_of = 2000, [400] * 4
    made.step()
    seen = made.ledger.entries[-1]
    assert seen["members"][3]["objective"] is None
    assert seen["members"][3]["episodes"] == 4
    assert made.best == best_member(made.ledger.entries) == 3
    assert made.metrics()["policy3/pbt/objective"] == pytest.approx(3.0, abs=0.1)


# -- unbiased ---------------------------------------------------------------------------------------------------


class Line:
    """A sampler's face for ratings alone: environments of two policies, and the clock of decided frames."""

    def __init__(self, envs: int, agents: int = 1) -> None:
        self.plan = SimpleNamespace(
            lanes_per_group=envs * agents, groups=2, policy_of_group=(0, 1), spec=SimpleNamespace(agents=agents)
        )
        self.box = SimpleNamespace(next_episode=np.zeros(2 * envs, np.int64))
        self.inference = SimpleNamespace(frames=0)


SHORT, LONG = 3, 75


def coins(policy: int, envs: int, steps: int, rng: np.random.Generator) -> list[EpisodeEnd]:
    """What ends in so many steps of all environments, in order: a coin says how long each episode is."""
    found = []
    for env in range(policy * envs, (policy + 1) * envs):
        lengths = rng.choice([SHORT, LONG], steps // SHORT)
        begins = np.cumsum(lengths) - lengths
        for k, (begun, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            if begun + length > steps:
                break
            found.append(EpisodeEnd(env, k, 0.0, length, True, policy, begun + length, begun + 1))
    return sorted(found, key=lambda own: own.frames)


def judged(envs: int, period: int, seed: int, rounds: int = 12) -> list[list[float]]:
    """Objectives (the length) of policies 0 and 1 of the same weights. Policy 1 is replaced whenever it was judged."""
    line, rng = Line(envs), np.random.default_rng(seed)
    pbt = PbtSettings(members=2, objective="length", min_episodes=8, episodes=100)
    found: list[list[float]] = [[], []]
    made = Ratings(pbt, line, 2)  # type: ignore[arg-type]
    ends = [own for policy in range(2) for own in coins(policy, envs, rounds * period, rng)]
    for number in range(1, rounds + 1):
        line.inference.frames = number * period
        made.add([own for own in ends if (number - 1) * period < own.frames <= number * period])
        for means, own in zip(found, made.judge(), strict=True):
            means += [] if math.isnan(own.mean) else [own.mean]
        if found[1] and not math.isnan(made.known[1].mean):
            made.restart(1, varied=False)
    return found


@pytest.mark.parametrize(("envs", "period"), [(1, 1000), (4, 300), (8, 100), (8, 160)])
def test_objectives_prefer_neither_short_nor_long_episodes(envs: int, period: int) -> None:
    """Half of the episodes are long, whoever asks: the means over 200 populations are within 4 standard errors (a false
    alarm in 16,000 each), for members that go on as for those that were just replaced."""
    rows = [judged(envs, period, seed) for seed in range(200)]
    for policy in range(2):
        means = [np.mean(row[policy]) for row in rows]
        error = np.std(means, ddof=1) / len(means) ** 0.5
        assert abs(np.mean(means) - (SHORT + LONG) / 2) < 4 * error, policy


def test_agents_that_share_an_episode_are_one_episode() -> None:
    line = Line(envs=1, agents=2)
    made = Ratings(PbtSettings(members=2, min_episodes=5, episodes=20), line, 2)  # type: ignore[arg-type]
    ends = [EpisodeEnd(lane, k, float(k + 10 * lane), 9, True, 0, 0, 1) for k in range(5) for lane in range(2)]
    made.add(ends[:-1])  # the last agent is still playing
    assert made.judge()[0].episodes == 4
    made.add(ends[-1:])
    assert made.judge()[0] == Evidence.of([5.0, 6.0, 7.0, 8.0, 9.0])


def test_statistics_may_come_before_or_after_their_episode_or_never() -> None:
    line = Line(envs=1)
    pbt = PbtSettings(members=2, objective="-goals", min_episodes=3, episodes=20)
    made = Ratings(pbt, line, 2)  # type: ignore[arg-type]
    ends = [EpisodeEnd(0, k, 0.0, 9, True, 0, 0, 1) for k in range(4)]
    made.add_statistics(0, 0, {"goals": 1.0})
    made.add(ends[:3])
    assert made.values(0) == [-1.0]
    made.add_statistics(0, 2, {"goals": 3.0})
    assert made.values(0) == [-1.0, -3.0], "of the second one nothing will be said any more"
    assert math.isnan(made.judge()[0].mean)
    made.add_statistics(0, 3, {"goals": 4.0})
    made.add(ends[3:])
    assert made.judge()[0] == Evidence.of([-1.0, -3.0, -4.0])


def test_episodes_that_a_new_session_has_lost_begin_a_block_anew() -> None:
    line = Line(envs=1)
    pbt = PbtSettings(members=2, min_episodes=3, episodes=20)
    first = Ratings(pbt, line, 2)  # type: ignore[arg-type]
    first.add([EpisodeEnd(0, k, 1.0, 9, True, 0, 0, 1) for k in range(2)])
    line.inference.frames = 50
    for same, wanted in ((True, [1.0, 1.0]), (False, [])):
        second = Ratings(pbt, line, 2)  # type: ignore[arg-type]
        second.load_state(first.state())
        second.go_on(same)
        assert second.values(0) == wanted
        second.add([EpisodeEnd(0, 2, 1.0, 9, True, 0, 0, 40)])
        assert len(second.values(0)) == (3 if same else 0), "begun before the session"
    older = {
        "windows": [[1.0], []],
        "since": [-1, 30],
        "from_episode": np.zeros(2, np.int64),
        "waiting": [],
        "told": [],
    }
    check_shape(older, ratings.STATE_SHAPE)
    third = Ratings(pbt, line, 2)  # type: ignore[arg-type]
    third.load_state(older)
    third.go_on(same=True)
    third.add([EpisodeEnd(0, 2, 1.0, 9, True, 0, 0, 40)])
    assert third.values(0) == [], "which episodes have ended before is not known"


def test_a_member_that_takes_over_has_the_weights_the_optimizer_and_no_old_rows(
    members: tuple[Members, Parts],
) -> None:
    made, parts = members
    one, two = (x for x in parts.learners[:2] if isinstance(x, Appo))
    sampler = parts.sampler
    sampler.start()
    for _ in range(4):
        while (slots := sampler.take(parts.segments_per_batch, 0)) is None:
            sampler.round()
        owner = sampler.plan.policy_of_group[sampler.inference.group_of_slot[slots[0]]]
        batch = {name: array.copy() for name, array in sampler.arena.gather(slots).items()}
        assert set(batch["policy_id"].ravel()) == {owner}, "a batch is one member's"
        parts.learners[owner].train(batch)
        sampler.release(slots)
        kept = batch if owner == 1 else locals().get("kept", batch)
    generator = two._generator.get_state()
    version = two.version
    two.adopt(one.state())
    assert_same(one.state()["model"], two.state()["model"])
    assert_same(one.state()["optimizer"], two.state()["optimizer"])
    assert torch.equal(two._generator.get_state(), generator)
    assert two.version > version + two.settings.max_policy_lag
    assert two.train(kept)["rows"] == 0, "what other weights have played"
    one.model.value_head.bias.data += 1
    assert not np.array_equal(one.state()["model"]["value_head.bias"], two.state()["model"]["value_head.bias"])


# -- settings of environments --------------------------------------------------------------------------------------


class Levels(Observer):
    """What episodes of every member have seen, against what it was given."""

    def __init__(self) -> None:
        self.wrong = 0
        self.looked = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        assert run.members is not None
        for member, own in enumerate(run.members.population.settings):
            seen = run.members.ratings.values(member)
            self.looked += len(seen)
            self.wrong += sum(value != own["env.variables.level"] for value in seen)


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_variables_of_an_environment_are_each_members_own(tmp_path: Path, mode: str) -> None:
    words = ("env=population_envs:Seen", "env.variables.level=0.5", "pbt.members=2", "pbt.period=100")
    words += ("pbt.tune.env.variables.level=[0,1]", "pbt.objective=seen", "pbt.min_episodes=5", "stop.frames=2500")
    seen = Levels()
    _, folder = train_here(tmp_path, f"sampling.mode={mode}", *words, observers=[seen])
    assert seen.looked > 100
    assert seen.wrong == 0
    entries = read_ledger(folder.path / NAME)
    assert [own["env.variables.level"] for own in entries[0]["begin"]] == [0.0, 1.0]
    assert any(entry["moves"] for entry in entries[1:])


class Never(Observer):
    """Nothing may start."""

    def on_init(self, run: OnlineRun) -> None:
        raise AssertionError


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("env=population_envs:Seen", "env.variables.level=0.5", "pbt.objective=-sean"),
            r"pbt.objective=-sean: .* no such statistic .* did you mean .seen",
        ),
        (("env=toy_target", "pbt.objective=goals"), r"pbt.objective=goals: .* tells no statistics of its episodes"),
    ],
)
def test_an_objective_that_the_environment_does_not_tell_is_refused_before_anything_starts(
    tmp_path: Path, mode: str, words: tuple[str, ...], message: str
) -> None:
    words = (*words, "pbt.members=2", f"sampling.mode={mode}", "stop.frames=2000")
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path, *words, observers=[Never()])


def test_where_no_episode_ends_in_time_the_first_round_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "episode_statistics", lambda *words: None)
    with pytest.raises(ConfigError, match=r"pbt.objective=goals: the environment tells no statistics of its episodes"):
        train_here(tmp_path, *SERIAL, *POPULATION, "pbt.objective=goals")


class Epochs(Observer):
    """How often each member learns from a batch."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        assert isinstance(run.members, Members)
        for learner, own in zip(run.parts.learners, run.members.population.settings, strict=True):
            assert isinstance(learner, Appo)
            assert learner.settings.epochs == own["learning.epochs"]
            assert isinstance(learner.settings.epochs, int)
            self.seen.add(learner.settings.epochs)


def test_whole_numbers_are_tuned_as_such(tmp_path: Path) -> None:
    seen = Epochs()
    words = ("env=toy_target", "pbt.members=4", "pbt.method=explore", "pbt.period=100", "stop.frames=2000")
    train_here(tmp_path, *SERIAL, *words, "pbt.tune.learning.epochs=[1,4,integer]", observers=[seen])
    assert seen.seen == {1, 2, 3, 4}


# -- the same again ---------------------------------------------------------------------------------------------


def test_stopped_and_resumed_is_as_if_never_stopped_and_the_ledger_is_the_same(
    tmp_path: Path, whole: RunFolder
) -> None:
    train_here(tmp_path, *SERIAL, *POPULATION, "stop.frames=2500")
    with (tmp_path / "x" / "run" / NAME).open("a") as file:  # as if it had been killed after its last checkpoint
        file.write('{"round": 99}\n{"round"')
    _, parts = train_here(tmp_path, *SERIAL, *POPULATION, mode="resume")
    assert (parts.path / NAME).read_bytes() == (whole.path / NAME).read_bytes()
    one, two = saved_state(whole), saved_state(parts)
    assert_same(one["learners"], two["learners"])
    assert_same(one["population"], two["population"])
    assert rows_of(whole)[-1] == rows_of(parts)[-1]


def test_killed_and_resumed(tmp_path: Path, rollmill: Run) -> None:
    words = [f"run.dir={tmp_path}", "run.experiment=x", *POPULATION, "run.name=run", "checkpoints.every_seconds=0.1"]
    words += ["report.tensorboard=false", "checkpoints.min_free_mb=1", "sampling.workers=2", "learning.batch_size=64"]
    words += ["sampling.rollout=8", "stop.frames=60000"]
    first = rollmill("train", *words)
    folder = RunFolder(tmp_path / "x" / "run")
    first.wait_for_text("population, round 3")
    first.kill()
    second = rollmill("train", "--resume", *words, "stop.frames=20000")
    assert second.wait() == 0, second.text
    entries, state = read_ledger(folder.path / NAME), saved_state(folder)
    assert [entry["round"] for entry in entries[1:]] == list(range(1, len(entries)))
    assert json.loads(json.dumps(state["population"]["ledger"])) == entries
    settings = state["population"]["rules"]["settings"]
    assert settings[best_member(entries)] == schedule(entries, best_member(entries))[-1].settings


# -- setbacks ---------------------------------------------------------------------------------------------------

BROKEN = (
    *("env=toy_target", "pbt.members=2", "pbt.method=fixed", "pbt.period=500"),
    *("learning.minibatches=2", "learning.max_policy_lag=2"),
)


class Lags(Observer):
    """How far a learner is from what acts, after every step."""

    def __init__(self) -> None:
        self.wrong = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for learner in run.parts.learners:
            assert isinstance(learner, Appo)
            acting = learner._board.tensors
            same = all(torch.equal(a, b) for a, b in zip(acting, tensors_of(learner.model), strict=True))
            self.wrong += not same or learner.version != learner._board.version


def break_learning(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Member 1 cannot learn while it takes its steps 10 to 30, in the middle of a batch or at its end."""
    optimize, report = Appo._optimize, Appo._report

    def bad(learner: Appo) -> bool:
        return learner.policy_id == 1 and 10 <= learner.optimizer_steps < 30

    def after_a_step(self: Appo, minibatch: Pieces) -> None:
        optimize(self, minibatch)
        if bad(self):
            raise NonFiniteError("told to")

    def at_the_end(self: Appo, batch: Batch, epochs: int) -> dict[str, float]:
        if bad(self):
            raise ValueCollapseError("told to")
        return report(self, batch, epochs)

    if kind == "nan":
        monkeypatch.setattr(Appo, "_optimize", after_a_step)
    else:
        monkeypatch.setattr(Appo, "_report", at_the_end)


@pytest.mark.parametrize("kind", ["nan", "collapse"])
def test_a_member_that_could_not_learn_goes_on_from_what_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    break_learning(monkeypatch, kind)
    seen = Lags()
    _, whole = train_here(tmp_path / "whole", *SERIAL, *BROKEN, "stop.frames=3000", observers=[seen])
    state = saved_state(whole)
    assert seen.wrong == 0
    assert state["population"]["setbacks"] == {"nan": 20, "collapse": 10}[kind]
    assert state["dropped_segments"] == 0
    assert state["learners"][1]["version"] > 20, "it learns again"
    train_here(tmp_path, *SERIAL, *BROKEN, "stop.frames=600")
    assert 0 < saved_state(RunFolder(tmp_path / "x" / "run"))["population"]["setbacks"] < 10
    _, parts = train_here(tmp_path, *SERIAL, *BROKEN, "stop.frames=3000", mode="resume")
    assert_same(state["learners"], saved_state(parts)["learners"])
    assert_same(state["population"], saved_state(parts)["population"])


# -- refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pbt.members=3",), r"pbt.members=3: each member plays whole groups .* cannot be shared out evenly"),
        (("pbt.tune.learning.gama=[0.9,0.99]",), r"pbt.tune.learning.gama is nothing .* did you mean .learning.gamma"),
        (("pbt.tune.learning.gamma=0.9",), r"pbt.tune.learning.gamma: expected bounds such as"),
        (("pbt.tune.learning.clip=[-1,1]",), r"pbt.tune.learning.clip: clip must be positive"),
        (("pbt.tune.learning.value_clip=[0.1,1]",), r"0 switches it off"),
        (("pbt.tune.env.variables.x=[0,1]",), r"env.variables has no such name that may be tuned \(it has: none\)"),
        (("learning.lr_schedule=linear",), r"learning.lr_schedule=linear moves it already"),
        (("pbt.begin=config", "learning.learning_rate=1"), r"lies outside of its bounds"),
        (("env=toy_agents", "env.policies=[0,1]"), r"does not go together with env.policies"),
        (("learning.ranks=2",), r"use learning.ranks=1"),
        (("replay.capacity=8", "learning.targets=vtrace"), r"does not go together with replay"),
        (("pbt.period=0", "stop.frames=0", "stop.seconds=1"), r"set pbt.period"),
        (("pbt.members=16",), r"pbt.members=16 are more than the environments \(sampling.workers=2 x"),
        (("pbt.objective=episode/return",), r"named without episode/"),
        (("pbt.period=2000",), r"the first round would be at 2,000 frames of each member .* each gets 1,500"),
        (("pbt.period=4",), r"a round every 4 frames of each member cannot hold pbt.min_episodes=5"),
        (("pbt.tune.learning.epochs=[1,8]",), r"epochs: only whole numbers can be meant: \[1, 8, integer\]"),
        (("pbt.tune.learning.epochs=[0,8,integer]",), r"epochs must be"),
        (
            ("pbt.begin=config", "pbt.tune.learning.gamma=[0.9,0.99,choice]", "learning.gamma=0.95"),
            "is none of 0.9, 0.99",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config_of(tmp_path, *POPULATION, *words))


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (
            ("env=CartPole-v1",),
            "episodes may take 500 steps, and 3 of each of a member's 2 environments are 3,000",
        ),
        (("env=CartPole-v1", "pbt.period=3000", "stop.frames=60000"), ""),
        (("env=CartPole-v1", "env.max_episode_steps=30"), ""),
        (("env=CartPole-v1", "pbt.method=random"), ""),
        (("env=toy_target",), ""),
    ],
)
def test_rounds_that_are_shorter_than_the_episodes_are_told_of(
    tmp_path: Path, words: tuple[str, ...], warned: str
) -> None:
    config = config_of(tmp_path, *SERIAL, *POPULATION, *words)
    said = short_rounds(config, config.pbt, population_period(config), 1)
    assert said.startswith(warned)
    assert bool(said) == bool(warned)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_nobody_gets_all_the_slots(tmp_path: Path, mode: str) -> None:
    """With segments as large as a batch there are few slots: the first group must not take them all."""
    words = (*POPULATION, f"sampling.mode={mode}", "learning.batch_size=16", "stop.frames=4000", "learning.epochs=4")
    _, folder = train_here(tmp_path, *words)
    steps = saved_state(folder)["sampler"]["steps_of"]
    assert max(steps) - min(steps) <= 4 * 16
    if mode == "sync":
        lags = [row.get(f"policy{k}/learn/policy_lag_max") for row in rows_of(folder) for k in (1, 2, 3)]
        assert {*lags} <= {0, None}
        assert 0 in lags
