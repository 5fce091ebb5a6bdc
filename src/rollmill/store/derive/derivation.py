"""A new store made from others: begun once, interrupted at any moment, continued where it was.

``made_by.json`` in the new store says which tool makes it from what. It is there before anything else is, so a job
that was killed can always be told from somebody else's data. What has been copied is known from the store itself:
its acknowledged episodes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import rollmill
from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.opening import read_json
from rollmill.store.care.recover import recover
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.writer import StoreWriter

RECIPE_FILE = "made_by.json"
SHARD_BYTES = 128 << 20


class NewStore:
    """The store a tool is making; use ``with``. Leaving it seals what was copied, whatever the reason.

    ``recipe`` names the tool and all that decides the result: continuing with another one is refused. ``done`` holds
    what an earlier, interrupted go has copied: steps by uid.
    """

    def __init__(
        self,
        target: Path | str,
        schema: StoreSchema,
        recipe: Mapping[str, Any],
        *,
        resume: bool = False,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(target).absolute()
        self._recipe = {"rollmill": rollmill.__version__, **recipe}
        self.done: dict[int, int] = {}
        if resume:
            self._continue(recipe)
        else:
            _begin(self.path, self._recipe)
        schema = replace(schema, made={})  # the recipe says how this one is made
        self.writer = StoreWriter(self.path, schema, shard_bytes=shard_bytes)

    def _continue(self, recipe: Mapping[str, Any]) -> None:
        found = read_recipe(self.path)
        plain = json.loads(json.dumps(dict(recipe)))
        for name, value in plain.items():
            if found.get(name) != value:
                raise StoreError(
                    f"{self.path} was begun with {name}={found.get(name)!r}, not {value!r}; "
                    "repeat the first command with --resume, or choose another target"
                )
        if not (self.path / "store.json").exists():
            return  # killed before the first episode
        recovery = recover(self.path)
        for shard, why in recovery.skipped:
            raise StoreError(f"{self.path}: shard {shard} is not free: {why}")
        store = open_quietly(self.path)
        self.done = dict(zip(store.table.uid.tolist(), store.table.length.tolist()))

    def finish(self, **result: Any) -> None:
        """Note the outcome: the job is done."""
        self.writer.close()
        try:
            atomic.write_json(self.path / RECIPE_FILE, {**self._recipe, "finished": True, **result})
        except OSError as error:
            raise StoreError(f"{self.path / RECIPE_FILE} cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> NewStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()


def read_recipe(path: Path) -> dict[str, Any]:
    """Read what ``made_by.json`` of a derived store says."""
    file = path / RECIPE_FILE
    if not path.exists():
        raise StoreError(f"nothing to resume: {path} does not exist")
    try:
        found = read_json(file)
    except FileNotFoundError:
        raise StoreError(
            f"nothing to resume: {path} was not begun by this command ({RECIPE_FILE} is missing)"
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{file} makes no sense")
    return found


def check_free(target: Path) -> None:
    """Raise StoreError if there is something at the target already."""
    if os.path.lexists(target):
        raise StoreError(f"{target} exists; choose another target, or continue an interrupted job with --resume")


def _begin(target: Path, recipe: Mapping[str, Any]) -> None:
    """Make the target's folder with its recipe inside, both or none."""
    check_free(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.mkdir(parents=True)
        try:
            atomic.write_json(draft / RECIPE_FILE, {**recipe, "finished": False})
            os.rename(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        atomic.sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be created: {error.strerror or error}") from error


def open_quietly(path: Path | str, *, unfinished: bool = False) -> Store:
    """Open a store without warnings; what is wrong is in its ``problems``, which tools print themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        return Store(path, unfinished=unfinished, cache_bytes=0)
