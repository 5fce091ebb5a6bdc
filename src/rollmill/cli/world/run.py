"""``rollmill world run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rollmill.cli.announce import announcer
from rollmill.cli.arguments import Spelling
from rollmill.cli.options import SettingsOptions, keep_stdout
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import ConfigError
from rollmill.core.run_kind import STAGES
from rollmill.runs.settings.world import WorldConfig


def run(
    overrides: tuple[str, ...],
    /,
    options: SettingsOptions,
    out: Path | None = None,
    until: Annotated[str, Spelling(choices=tuple(STAGES))] = "report",
    trust_code: bool = False,
) -> int:
    """All stages in turn: ``rollmill world run --config carracing_world``.

    The same command again skips what is done and continues what was interrupted. A stage whose settings have changed
    is run again, with all that depends on it; what it had made before is moved to ``aside/``.

    Args:
        overrides: Settings, for example vae.fit.steps=5000 controller.generations=50.
        out: Folder of everything; unset: runs/world/NAME, after the first config.
        until: Stop after this stage.
        trust_code: Run the code that a checkpoint among collect.episodes names.
    """
    config, json_ = options.config, options.json_
    if out is None and not config and not options.print_config:
        raise ConfigError("where to? Give --out, or a --config whose name is the folder's")
    settings = load_config(WorldConfig, config, overrides)
    if options.print_config:
        print(dump_yaml(settings), end="")
        return 0
    folder = out or Path("runs") / "world" / config[0].stem
    from rollmill.runs.world.run import run_world

    with keep_stdout(json_):
        ready, console = announcer(settings, folder, quiet=json_), "off" if json_ else "auto"
        request = options.request(console=console, trust_code=trust_code, on_ready=ready)
        outcome = run_world(settings, folder, request, until)
    if json_:
        print(json.dumps(outcome.to_dict()))
        return outcome.exit_code
    stages = ", ".join(f"{name} {state}" for name, state in outcome.stages.items())
    print(f"{outcome.state}: {stages}; folder {outcome.folder}")
    if "page" in outcome.results.get("report", {}):
        print(f"report: {outcome.results['report']['page']}")
    if outcome.state == "interrupted":
        print("the same command continues it")
    return outcome.exit_code
