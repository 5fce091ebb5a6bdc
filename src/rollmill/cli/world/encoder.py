"""``rollmill world vae`` and ``rollmill world encode``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from rollmill.cli.announce import announcer, page_of
from rollmill.cli.options import Configs, Json, PrintConfig
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.world import VaeConfig


def vae(
    overrides: tuple[str, ...],
    store: Path,
    /,
    out: Path,
    config: Configs = (),
    resume: bool = False,
    overwrite: bool = False,
    print_config: PrintConfig = False,
    json_: Json = False,
) -> int:
    """Learn an image encoder from a store: ``rollmill world vae data/car --out runs/car/vae fit.steps=3000``.

    Writes ``encoder.bin`` (architecture and weights), metrics, images of reconstructions and ``report.html``. The
    same command continues a training.

    Args:
        overrides: Settings, for example encoder.size=32 fit.batch_size=128 images.per_rollout=100.
        store: The store with the images.
        out: Folder of the training.
        config: A YAML file with settings; may be given several times, later files win.
        resume: Continue with the settings of the folder below the given ones; without it, the same command continues.
        overwrite: Delete the training in the folder and start anew.
        print_config: Print all settings as YAML and start nothing.
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    from rollmill.runs.lifecycle import Request
    from rollmill.runs.world.encoder import train_vae

    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other: one keeps the training, the other deletes it")
    folder = RunFolder(out)
    settings = (
        resumed_settings(VaeConfig, folder, config, overrides) if resume else load_config(VaeConfig, config, overrides)
    )
    if print_config:
        print(dump_yaml(settings), end="")
        return 0
    request = Request(
        "resume" if resume else "overwrite" if overwrite else "continue",
        None,
        ("rollmill", *sys.argv[1:]),
        "off" if json_ else "auto",
        on_ready=announcer(settings, out, quiet=json_),
    )
    outcome = train_vae(settings, store, out, request)
    if json_:
        print(json.dumps(outcome.to_dict()))
        return outcome.exit_code
    print(f"{outcome.state}: {outcome.reason}; {outcome.steps:,} optimizer steps, folder {outcome.folder}")
    if outcome.encoder is not None:
        print(f"encoder: {outcome.encoder}")
        print(f"report: {page_of(out, 'encoder')}")
    else:
        print("the same command continues it")
    return outcome.exit_code


def encode(
    store: Path,
    encoder: Path,
    /,
    out: Path,
    shards: int = 1,
    shard: int = 0,
    sub_shards: int = 1,
    gpu: int | None = None,
    batch_size: int = 256,
    json_: Json = False,
) -> int:
    """Turn images into latents: ``rollmill world encode data/car runs/car/vae --out data/car_latents``.

    Every instance takes the shards of the store that are its share and that nobody else has done or is at. The same
    command again does what is left.

    Args:
        store: The store with the images.
        encoder: The encoder's file, or the folder of its training.
        out: The store of latents; instances share it.
        shards: Number of shares that the store's shards are divided into; every instance says the same.
        shard: Number of this instance's share, from 0.
        sub_shards: Processes that divide this instance's share among themselves.
        gpu: Number of the GPU to use; unset: the CPU, or the only GPU there is.
        batch_size: Images encoded at a time.
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    from rollmill.runs.world.encode import EncodeOptions, encode_store

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = EncodeOptions(store, encoder, out, shards, shard, sub_shards, gpu, batch_size)
    outcome = encode_store(options)
    print(json.dumps(outcome.to_dict()) if json_ else outcome.text())
    return outcome.exit_code
