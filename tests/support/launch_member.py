"""A member of a population for tests of its launcher: meets the others as a training does, and learns nothing.

Its weights are a number that grows by its tuned ``rate`` with every frame, and that number is its objective. Settings
under ``env.args`` say what happens: ``broken`` (this member ends with code 1 as long as it has weights of its own) and
``gate`` (before its second round, member 0 waits until the file is there).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.config.yaml import parse_value
from rollmill.core.run_folder import PAUSED, RunFolder
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.exchange import Exchange


def main(words: list[str]) -> int:
    values = {key: parse_value(text, key) for key, equals, text in (word.partition("=") for word in words) if equals}
    mode: Any = "resume" if "--resume" in words else "overwrite" if "--overwrite" in words else "new"
    path = Path(values["run.dir"]) / values["run.experiment"] / values["run.name"]
    with RunFolder.create(path, mode, min_free_mb=1) as folder:
        return live(folder, Exchange(Path(values["pbt.exchange"])), values)


def live(folder: RunFolder, exchange: Exchange, values: dict[str, Any]) -> int:
    member, wanted = values["pbt.member"], values["stop.frames"]
    folder.checkpoints.mkdir(exist_ok=True)
    folder.config.write_text("run: {seed: 0}\n")
    path = folder.checkpoints / "frames-000000000001.ckpt"
    own = json.loads(path.read_text()) if path.exists() else {"round": 0, "frames": 0, "weights": 0.0}
    folder.set_state("running", step=own["frames"])
    while True:
        own = caught_up(exchange, member, own)
        atomic.write_text(path, json.dumps(own))  # reports keep links to it: those must not change
        now = exchange.decided(own["round"])
        assert now is not None
        if own["frames"] >= wanted:
            folder.set_state("finished", "limit", own["frames"])
            return 0
        if own["frames"] < now.next_at:
            if values.get("env.args.broken") == member and own["weights"] < 100:
                return 1
            own["frames"] += 10
            own["weights"] += now.settings[member]["learning.learning_rate"]
            continue
        number = own["round"] + 1
        if number == 2 and member == 0:
            while values.get("env.args.gate") and not Path(values["env.args.gate"]).exists():
                time.sleep(0.02)
        if not exchange.reported(number, member):
            exchange.report(number, member, own["frames"], Evidence(own["weights"], 0.0, 10), path)
        while exchange.decide() < number:
            if exchange.missing(member):
                folder.set_state("interrupted", f"round {number} waits", own["frames"])
                return PAUSED
            time.sleep(0.02)


def caught_up(exchange: Exchange, member: int, own: dict[str, Any]) -> dict[str, Any]:
    for number in range(own["round"] + 1, exchange.newest + 1):
        found = exchange.decided(number)
        assert found is not None
        own["round"] = number
        if member in found.donors:
            theirs = json.loads(exchange.checkpoint(number, found.donors[member]).read_text())
            own["weights"] = theirs["weights"]
            own["frames"] = max(own["frames"], theirs["frames"])
    return own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
