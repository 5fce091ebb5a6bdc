"""A trainer for tests of the launcher: takes the words of ``rollmill train`` and writes a true run folder, at no cost.

Settings under ``env.args`` say what happens: ``gate`` (a file: half way, with a checkpoint written, it waits until the
file is there), ``fail`` (raise after the first half), ``code`` (end at once with this exit code).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rollmill.core.config.yaml import parse_value
from rollmill.core.diary import Diary
from rollmill.core.run_folder import RunFolder

ended = 0


def on_signal(number: int, _frame: Any) -> None:
    global ended
    ended = number


def main(words: list[str]) -> int:
    values = {}
    for word in words:
        key, equals, text = word.partition("=")
        if equals:
            values[key] = parse_value(text, word)
    if "env.args.code" in values:
        print(f"this is the end: {values['env.args.code']}")
        return int(values["env.args.code"])
    mode: Any = "resume" if "--resume" in words else "overwrite" if "--overwrite" in words else "new"
    path = Path(values["run.dir"]) / values["run.experiment"] / values["run.name"]
    signal.signal(signal.SIGTERM, on_signal)
    with RunFolder.create(path, mode, min_free_mb=1) as folder:
        return train(folder, mode, values)


def train(folder: RunFolder, mode: str, values: dict[str, Any]) -> int:
    folder.checkpoints.mkdir(exist_ok=True)
    start = max((int(p.stem.split("-")[1]) for p in folder.checkpoints.glob("*.ckpt")), default=0)
    diary = Diary.open(folder.diary) if mode == "resume" else Diary.create(folder.diary, sys.argv)
    diary.begin_session(sys.argv, start)
    folder.config.write_text(f"run: {{seed: {values.get('run.seed', 0)}}}\n")
    place = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "TMPDIR", "SLURM_JOB_ID", "DISPLAY")}
    place |= {"cores": sorted(os.sched_getaffinity(0)), "pid": os.getpid(), "started": time.time()}
    (folder.path / f"place-{len(diary.sessions)}.json").write_text(json.dumps(place))
    folder.set_state("running", step=start)
    frames, wanted = start, int(values["stop.frames"])
    gate = values.get("env.args.gate")
    while frames < wanted and not ended:
        if frames >= wanted // 2:
            (folder.checkpoints / f"frames-{frames:012d}.ckpt").touch()
            if values.get("env.args.fail"):
                folder.set_state("failed", "EnvError: broken on purpose\nTraceback", frames)
                diary.end_session("failed", frames)
                print("broken on purpose", file=sys.stderr)
                return 1
            if gate and not Path(gate).exists():
                time.sleep(0.02)
                continue
        frames += max(1, wanted // 10)
        row = {"frames": frames, "time": time.time(), "episode/return": score(frames, values)}
        row |= {"time/frames_per_s": 100.0, "time/seconds": frames / 100}
        with open(folder.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    (folder.checkpoints / f"frames-{frames:012d}.ckpt").touch()
    state: Any = "interrupted" if ended else "finished"
    folder.set_state(state, f"signal {ended}" if ended else f"limit of {wanted} frames", frames)
    diary.end_session(state, frames)
    return 128 + ended if ended else 0


def score(frames: int, values: dict[str, Any]) -> float:
    return frames / 10 * float(values.get("learning.gamma", 1)) + 0.1 * int(values.get("run.seed", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
