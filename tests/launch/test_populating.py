"""A population of separate runs: members take turns, die, come back, and nobody has to stay alive for it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launching import (
    FRAMES,
    PBT,
    PERIOD,
    checked_ledger,
    facts,
    in_second_round,
    population,
    population_launcher,
    states,
)
from running import wait_until

from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.launch.experiment import read_experiment
from rollmill.launch.launcher import cancel, record_plan
from rollmill.launch.plan import Plan, plan_members
from rollmill.launch.populating import told
from rollmill.launch.records import LaunchRecords
from rollmill.launch.settings import LaunchSettings
from rollmill.pbt.settings import PbtSettings


def test_more_members_than_places(tmp_path: Path) -> None:
    made = population_launcher(tmp_path, population())
    most: list[int] = []
    statuses = made.run(lambda now: most.append(sum(s.active for s in now)))
    assert set(states(statuses).values()) == {"finished"}
    assert max(most) == 2
    entries = checked_ledger(made)
    assert len(entries) == 1 + FRAMES // PERIOD
    assert any(entry["moves"] for entry in entries[1:])
    assert all(status.attempts == 1 and status.failures == 0 for status in statuses), "making room is no failure"
    assert any(a.paused for run in made.plan.runs for a in made.records.attempts(run.name)), "nobody made room"
    lines = told(made.exchange, made.records.experiment)
    assert lines[0].startswith("3 rounds of the population, weights were copied ")
    assert lines[1].startswith("best: member 3, return ")
    kept = {path.stem for path in made.exchange.folder.glob("reports/*/*.ckpt")}
    assert kept <= {str(move["from"]) for entry in entries[1:] for move in entry["moves"]}


def test_whoever_waits_for_a_round_is_not_started_before_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = population_launcher(tmp_path, population(**{"env.args.gate": str(gate)}))
    others = (1, 2, 3)
    wait_until(lambda: made.tick() and all(made.exchange.reported(2, k) for k in others), what="round 2")
    waiting = wait_until(lambda: [s.run.name for s in made.tick() if s.paused and not s.active], what="room was made")
    before = {name: len(made.records.attempts(name)) for name in waiting}
    for _ in range(3):
        made.tick()
    assert {name: len(made.records.attempts(name)) for name in waiting} == before
    assert made.exchange.newest == 1
    gate.touch()
    assert set(states(made.run()).values()) == {"finished"}


def test_a_killed_member_and_a_killed_launcher(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    what = population(**{"env.args.gate": str(gate)})
    made = population_launcher(tmp_path, what)
    folder = made.records.experiment / "member-0"
    wait_until(lambda: in_second_round(made, 0), what="its second round")
    os.kill(int((folder / ".lock").read_text().split()[1]), signal.SIGKILL)
    gate.touch()
    statuses = population_launcher(tmp_path, what).run()  # another launcher: nothing is known but what is on the disk
    assert set(states(statuses).values()) == {"finished"}
    assert any(attempt.failed for attempt in made.records.attempts("member-0"))
    assert len(checked_ledger(made)) == 4


def test_who_fails_for_good_comes_back_with_the_weights_of_another(tmp_path: Path) -> None:
    made = population_launcher(tmp_path, population(**{"env.args.broken": 1}), "local.parallel=4")
    statuses = made.run()
    entries = checked_ledger(made)
    first = entries[1]
    assert first["lost"] == {"1": "exit code 1"}
    assert first["members"][1] == {
        "member": 1,
        "frames": 0,
        "objective": None,
        "error": None,
        "episodes": 0,
        "settings": entries[0]["begin"][1],
    }
    (copy,) = (move for move in first["moves"] if move["member"] == 1)
    assert copy["from"] in (2, 3)
    # Its weights are still below what it would need: it is lost again, and replaced again, until the end.
    assert states(statuses)["member-1"] in ("finished", "failed")
    assert {state for name, state in states(statuses).items() if name != "member-1"} == {"finished"}


def test_nobody_waits_for_who_was_cancelled(tmp_path: Path) -> None:
    made = population_launcher(tmp_path, population())
    cancel(made.records, made.plan, made.backend, ["member-2"])
    statuses = made.run()
    assert states(statuses) == {f"member-{k}": "cancelled" if k == 2 else "finished" for k in range(4)}
    entries = checked_ledger(made)
    assert all(entry["lost"] == {"2": "cancelled"} for entry in entries[1:])
    assert all(move["member"] != 2 for entry in entries[1:] for move in entry["moves"])


def test_a_population_that_has_begun_keeps_its_rules(tmp_path: Path) -> None:
    population_launcher(tmp_path, population()).run()
    other = replace(population(), population=replace(PBT, replace_fraction=0.5))
    with pytest.raises(RunFolderError, match="has begun with other settings"):
        population_launcher(tmp_path, other)


def test_a_description(tmp_path: Path) -> None:
    text = {"experiment": "pop", "population": {"members": 3, "method": "explore"}, "seeds": [5]}
    (tmp_path / "pop.yaml").write_text(yaml.safe_dump(text))
    found = read_experiment(tmp_path / "pop.yaml")
    assert found.population == PbtSettings(members=3, method="explore")
    runs = plan_members(found, tmp_path, facts)
    assert [run.name for run in runs] == ["member-0", "member-1", "member-2"]
    words = set(runs[1].words)
    assert {f"pbt.exchange={tmp_path / 'pop'}", "pbt.member=1", "run.seed=16"} <= words
    records = LaunchRecords(tmp_path / "pop")
    record = record_plan(records, Plan("pop", tmp_path / "pop", runs, population={"a": 1}), LaunchSettings(), ".")
    assert records.read_plan().population == {"a": 1} == record.population
    assert "population" in json.loads((tmp_path / "pop" / "launch" / "plan.json").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"population": {"members": 1}}, "members=1: at least 2"),
        ({"population": {"members": 4, "perturb": 2}}, r"population: .*perturb"),
        ({"population": {"members": 4}, "seeds": 3}, "a population has one seed"),
        ({"population": {"members": 4}, "seeds": 0}, "a population has one seed"),
        ({"population": {"members": 4}, "shuffle": 1}, "a population has no params, search, commands or shuffle"),
        ({"population": {"members": 4}, "program": ["rollmill", "offline"]}, "are trained by `rollmill train`"),
        ({"population": {"members": 4}, "settings": {"pbt.method": "mf"}}, "pbt.method: say it under population"),
        ({"population": {"members": 4, "replay": "runs/x"}}, "replay"),
    ],
)
def test_what_cannot_be_a_population_is_refused(tmp_path: Path, text: dict[str, Any], message: str) -> None:
    (tmp_path / "pop.yaml").write_text(yaml.safe_dump({"experiment": "pop", **text}))
    with pytest.raises(ConfigError, match=message):
        read_experiment(tmp_path / "pop.yaml")
