from pathlib import Path

import pytest
from offlining import skilled_store
from running import Call

SMALL = (
    *("model.context=4", "model.size=16", "model.layers=1", "model.mlp=[16]"),
    *("fit.batch_size=8", "fit.steps=3", "fit.threads=1", "report.tensorboard=false"),
    *("evaluation.final_episodes=4", "evaluation.workers=1", "evaluation.envs=4", "evaluation.targets=[2, 8]"),
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(skilled_store(tmp_path / "data", 20).path)


def test_learn_and_judge_from_the_command_line(call: Call, store: str) -> None:
    done = call("offline", store, *SMALL, "run.name=dt")
    assert done.code == 0, done.err
    assert done.out.startswith(f"settings  run.name=dt store={store}")
    assert "model.context=4" in done.out
    assert "wandb" not in done.out
    assert done.out.endswith("\nreport: runs/default/dt/report.html\n")
    assert "asked for" in done.out
    assert "reached fit.steps=3; 3 updates, folder runs/default/dt" in done.out
    twice = call("offline", store, *SMALL, "run.name=dt")
    collected = call("collect", "--policy", "runs/default/dt", "--target", "8", "--out", "x", "--until", "2")
    assert collected.code == 0, collected.err
    assert "policy dt/updates-000000000003.ckpt, asked for 8," in collected.out
    moved = call("offline-eval", "runs/default/dt", "--targets", "2", "8")
    assert moved.code == 2
    assert moved.err == "rollmill: 'offline-eval' is now `rollmill eval runs/default/dt --targets 2 8`\n"
    assert twice.code == 2
    assert twice.out == ""
    assert twice.err.count("\n") == 1
    assert "--resume" in twice.err
    judged = call("eval", "runs/default/dt", "--episodes", "4", "--workers", "1", "--random", "--json")
    assert judged.code == 0, judged.err
    rows = judged.json["results"]
    assert [(row["policy"], row["target"]) for row in rows] == [("dt", 2.0), ("dt", 8.0)]  # type: ignore[index, attr-defined]
    assert rows[0]["random"]["episodes"] == 4  # type: ignore[index]
    shown = call("eval", "runs/default/dt", "--episodes", "4", "--targets", "5", "--report", "page.html")
    assert shown.code == 0, shown.err
    assert "asked for 5" in shown.out
    assert Path("page.html").is_file()


def test_a_run_folder_means_its_recording(call: Call, tmp_path: Path) -> None:
    skilled_store(tmp_path / "agent/data", 20)
    (tmp_path / "agent/config.yaml").touch()
    done = call("offline", "agent", *SMALL, "evaluation.episodes=0")
    assert done.code == 0, done.err
    assert "folder runs/default/dt-agent-s0" in done.out


def test_resume_without_config_yaml_takes_the_settings_of_the_checkpoint(call: Call, store: str) -> None:
    words = ("run.name=bc", "evaluation.episodes=0", "evaluation.targets=[]")
    assert call("offline", store, *SMALL, "algorithm=bc", *words).code == 0
    Path("runs/default/bc/config.yaml").unlink()
    again = call("offline", *words, "fit.steps=4", "--resume")
    assert again.code == 0, again.err
    assert "runs/default/bc/config.yaml is missing: the settings are those of " in again.err
    assert "algorithm=bc" in again.out
    assert "reached fit.steps=4; 4 updates" in again.out


def test_json_is_all_there_is_on_stdout(call: Call, store: str) -> None:
    done = call("offline", store, *SMALL, "evaluation.episodes=0", "--json")
    assert done.json["state"] == "finished"
    assert done.json["results"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "which store?"),
        (("no/such/store",), "is not a store"),
        (("x", "--resume", "--overwrite"), "exclude each other"),
        (("x", "algoritm=bc"), "did you mean 'algorithm'"),
        (("x", "store=y"), "are two stores"),
    ],
)
def test_what_is_wrong_is_said(call: Call, words: tuple[str, ...], message: str) -> None:
    done = call("offline", *words)
    assert done.code != 0
    assert message in done.err
