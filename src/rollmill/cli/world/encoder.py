"""``rollmill world vae`` and ``rollmill world encode``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from rollmill.cli.announce import announcer, page_of
from rollmill.cli.options import Json, StartOptions, keep_stdout, shard_bytes
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.run_folder import RunFolder
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.world import EncodeShare, EncodeWords, VaeConfig
from rollmill.worldmodel.own import Trust


def vae(
    overrides: tuple[str, ...],
    store: Path,
    /,
    out: Path,
    options: StartOptions,
) -> int:
    """Learn an image encoder from a store: ``rollmill world vae data/car --out runs/car/vae fit.steps=3000``.

    Writes ``encoder.bin`` (architecture and weights), metrics, images of reconstructions and ``report.html``. The
    same command continues a training; with ``--resume`` it has the settings of the folder below the given ones.

    Args:
        overrides: Settings, for example encoder.size=32 fit.batch_size=128 images.per_rollout=100.
        store: The store with the images.
        out: Folder of the training.
    """
    from rollmill.runs.world.encoder import train_vae

    mode, files = options.mode("continue"), options.config
    if options.resume:
        settings = resumed_settings(VaeConfig, RunFolder(out), files, overrides)
    else:
        settings = load_config(VaeConfig, files, overrides)
    if options.print_config:
        print(dump_yaml(settings), end="")
        return 0
    request = options.request(mode=mode, on_ready=announcer(settings, out, quiet=options.json_))
    with keep_stdout(options.json_):
        outcome = train_vae(settings, store, out, request)
    if options.json_:
        print(json.dumps(outcome.to_dict()))
        return outcome.exit_code
    print(f"{outcome.state}: {outcome.reason}; {outcome.steps:,} updates, folder {outcome.folder}")
    if outcome.encoder is not None:
        print(f"encoder: {outcome.encoder}")
        print(f"report: {page_of(out, 'encoder')}")
    else:
        print("the same command continues it")
    return outcome.exit_code


def encode(
    overrides: tuple[str, ...],
    store: Path,
    encoder: Path,
    /,
    out: Path,
    options: EncodeShare,
    shard_mb: int = 128,
    trust_code: bool = False,
    json_: Json = False,
) -> int:
    """Turn images into latents: ``rollmill world encode data/car runs/car/vae --out data/car_latents``.

    Every instance takes what is its share of the work and what nobody else has done or is at. The same command again
    does what is left.

    Args:
        overrides: encoder.custom=my_encoder.py:Mine, for an encoder of a class of your own.
        store: The store with the images.
        encoder: The encoder's file, or the folder of its training.
        out: The store of latents; instances share it.
        shard_mb: Size of the new store's files in MB: the latents of as many shards as it takes go into one.
        trust_code: Run the code that the encoder's file names; else your own words have to name it.
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    from rollmill.runs.world.encode import EncodeOptions, encode_store

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    trust = Trust(encoder=load_config(EncodeWords, (), overrides).encoder, trust_code=trust_code)
    size = shard_bytes(shard_mb)
    outcome = encode_store(EncodeOptions(store, encoder, out, **vars(options), shard_bytes=size, trust=trust))
    print(json.dumps(outcome.to_dict()) if json_ else outcome.text())
    return outcome.exit_code
