"""Exports to Minari datasets, and imports them.

Export: the target is the dataset's folder; Minari finds it by id when the target lies below its root
(``MINARI_DATASETS_PATH``). Lossless (``jpeg_encoding=False``), HDF5, written through Minari's own storage, one episode
at a time.

- Observations: a Dict space of the store's fields, or the Box alone if the only field is called ``obs``.
- Actions: as the environment got them (choices counted from the space's start, vectors clipped to its bounds).
- An episode without a recorded end is truncated in its last step: Minari has no other word for it.
- Other columns become ``infos``, one row per observation; step columns have no value in the last (NaN, -1 or 0).
- Return, uid, policy and the like are in the episodes' metadata.

Import: spaces become fields exactly as they do for a live environment (floats to float32, choices one-hot), so a model
trained on the data fits the environment.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, MissingExtraError, StoreError
from rollmill.core.fields import ActionSpec, Array, EnvSpec
from rollmill.core.slots import OBS
from rollmill.envs.spaces import action_layout, observation_layout
from rollmill.store.convert.columns import env_actions, field_name, observation_columns
from rollmill.store.convert.intake import Imported, content_uid, new_store
from rollmill.store.convert.target import Exported, Progress, new_folder
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store


@dataclass(frozen=True)
class Options:
    """Knobs of the Minari export."""

    dataset_id: str | None = None
    """``(namespace/)name-v0``; without it, where the target lies below Minari's root, or the target's own name."""
    author: str = ""
    """Is noted in the dataset."""
    description: str = ""
    """Is noted in the dataset."""


@dataclass(frozen=True)
class ImportOptions:
    """Knobs of the Minari import."""

    env: str = ""
    """Env id to note in the store; without it, the dataset's own."""


def _minari() -> Any:
    try:
        import h5py  # noqa: F401 - Minari needs both for the HDF5 format
        import minari
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'Minari datasets need minari, h5py and pillow ({error}): pip install "rollmill[minari]" pillow'
        ) from error
    return minari


# -------------------------------------------------------------------------------------------------- export


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a Minari dataset into the folder ``target``."""
    minari = _minari()
    from minari.dataset.minari_storage import MinariStorage

    done = Exported(Path(target).absolute(), episodes=len(episodes), steps=int(store.table.length[episodes].sum()))
    name = _dataset_id(done.path, options.dataset_id)
    with new_folder(target) as folder:
        data = folder / "data"
        data.mkdir()
        storage = MinariStorage.new(
            data,
            observation_space=_observation_space(store.schema),
            action_space=_action_space(store.schema.env.action),
            env_spec=_env_spec(store.schema),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        storage.update_metadata(_metadata(name, minari.__version__, options))
        storage.update_episodes(_buffers(store, episodes, done.steps, progress))
        storage.update_episode_metadata(_episode_metadata(store, int(i)) for i in episodes)
        files = [path.relative_to(folder) for path in sorted(data.rglob("*")) if path.is_file()]
    done.files = [done.path / file for file in files]
    partial = int(store.table["partial_end"][episodes].sum())
    if partial:
        done.notes.append(f"{partial} episodes have no recorded end; they are truncated in the dataset")
    done.notes.append(
        f"dataset id {name}: minari.load_dataset finds it if MINARI_DATASETS_PATH is {_root_of(done, name)}"
    )
    return done


def _dataset_id(target: Path, wanted: str | None) -> str:
    from minari.dataset.minari_dataset import DATASET_ID_RE

    name = wanted
    if name is None:
        root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets").absolute()
        name = target.relative_to(root).as_posix() if target.is_relative_to(root) else target.name
    match = DATASET_ID_RE.fullmatch(name)
    if match is None or match.group("version") is None:
        raise ConfigError(
            f"Minari dataset id {name!r}: (namespace/)name-v0 is expected; name the target so, or give --dataset-id"
        )
    if not target.as_posix().endswith(f"/{name}"):
        raise ConfigError(f"Minari finds dataset {name} in a folder of that name; the target is {target}")
    return name


def _root_of(done: Exported, name: str) -> Path:
    return Path(done.path.as_posix().removesuffix(name))


def _observation_space(schema: StoreSchema) -> Any:
    from gymnasium import spaces

    columns = observation_columns(schema)
    if [field_name(column) for column in columns] == ["obs"]:
        return _box(columns[0])
    return spaces.Dict({_key(field_name(column)): _box(column) for column in columns})


def _box(column: Column) -> Any:
    from gymnasium import spaces

    if column.dtype == "bool":
        return spaces.MultiBinary(column.shape or 1)
    dtype = np.dtype(column.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, column.shape, dtype.type)


def _action_space(spec: ActionSpec) -> Any:
    from gymnasium import spaces

    if spec.kind == "discrete":
        return spaces.Discrete(spec.nvec[0], start=spec.start[0] if spec.start else 0)
    if spec.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(spec.nvec), start=list(spec.start or [0] * len(spec.nvec)))
    # A mixed action is one vector, as it is stored: its choices are whole numbers in it.
    last = [first + n - 1 for first, n in zip(spec.start, spec.nvec)]
    low, high = np.array([*spec.start, *spec.low], np.float32), np.array([*last, *spec.high], np.float32)
    shape = spec.field.shape
    return spaces.Box(low.reshape(shape), high.reshape(shape), shape, np.float32)


def _env_spec(schema: StoreSchema) -> Any:
    """Return Gymnasium's own spec, so that ``recover_environment`` works where the env is one of Gymnasium's."""
    import gymnasium as gym

    if schema.env_id not in gym.registry:
        return None
    spec = gym.spec(schema.env_id)
    spec.kwargs.update(schema.env_kwargs)
    return spec


def _metadata(name: str, version: str, options: Options) -> dict[str, Any]:
    import rollmill

    data: dict[str, Any] = {"dataset_id": name, "minari_version": version}
    data["description"] = options.description or f"exported by rollmill {rollmill.__version__}"
    if options.author:
        data["author"] = {options.author}
    return data


def _buffers(store: Store, episodes: Array, total: int, progress: Progress | None) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    plain = [field_name(c) for c in observation_columns(store.schema)] == ["obs"]
    done = 0
    for i in map(int, episodes):
        episode = store.episode(i)
        fields = {
            _key(name): rows.astype(np.int8) if rows.dtype == bool else rows for name, rows in episode.obs.items()
        }
        truncateds = episode.truncateds
        truncateds[-1] |= not episode.terminated
        yield EpisodeBuffer(
            seed=episode.info.seed,
            observations=fields["obs"] if plain else fields,
            actions=env_actions(store.schema.env.action, episode.actions),
            rewards=episode.rewards,
            terminations=episode.terminateds,
            truncations=truncateds,
            infos=_infos(store.schema, episode),
        )
        done += episode.length
        if progress is not None:
            progress(done, total)


def _key(name: str) -> str:
    """Replace slashes in a name: one would open a group in HDF5."""
    return name.replace("/", ".")


def _infos(schema: StoreSchema, episode: Episode) -> dict[str, Array]:
    infos = {"step": _padded(episode.steps)}
    for column in schema.columns:
        if column.name not in ("action", "reward") and not column.name.startswith(OBS):
            rows = episode.columns[column.name]
            infos[_key(column.name)] = rows if column.per == "obs" else _padded(rows)
    return infos


def _padded(rows: Array) -> Array:
    """Add a row: no decision was taken at the final observation."""
    filler = {"f": np.nan, "i": -1}.get(rows.dtype.kind, 0)
    return np.concatenate([rows, np.full((1, *rows.shape[1:]), filler, rows.dtype)])


def _episode_metadata(store: Store, i: int) -> dict[str, Any]:
    end = store.end_record(i)
    found = {
        "uid": f"{end.uid:016x}",
        "return": end.return_,
        "env_id": end.env_id,
        "policy": end.policy,
        "policy_id": end.policy_id,
        "version_min": end.version_min,
        "version_max": end.version_max,
        "first_step": end.first_step,
        "partial": end.partial,
    }
    return {**found, **{f"stats/{name}": value for name, value in end.stats.items()}}


# -------------------------------------------------------------------------------------------------- import


def import_episodes(
    sources: Sequence[str], target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """Write a new store with the episodes of one Minari dataset, given by folder or id."""
    if len(sources) != 1:
        raise ConfigError("one Minari dataset is imported at a time (merge the stores afterwards)")
    dataset = _open(sources[0])
    fields, write = observation_layout(dataset.observation_space)
    action, _ = action_layout(dataset.action_space)
    env_id = options.env or (dataset.env_spec.id if dataset.env_spec is not None else "unknown")
    kwargs = {} if dataset.env_spec is None else _plain(dataset.env_spec.kwargs)
    spec = EnvSpec(env_id, fields, action)
    schema = StoreSchema.for_env(
        spec, env_id=env_id, env_kwargs=kwargs, created_by=f"imported from Minari {dataset.id}"
    )
    done = Imported(Path(target))
    total, dropped = int(dataset.total_steps), set[str]()
    with new_store(target, schema) as writer:
        for number, found in enumerate(dataset.iterate_episodes()):
            columns = _columns(found, dataset, fields, write, action, done.steps, dropped)
            meta = next(iter(dataset.storage.get_episode_metadata([found.id])))
            seed = meta.get("seed")
            info = EpisodeInfo(uid=content_uid(number, columns), seed=None if seed is None else int(seed))
            ends = bool(found.terminations[-1]), bool(found.truncations[-1])
            writer.add_episode(Episode(columns, info, *ends))
            done.episodes += 1
            done.steps += len(found)
            if progress is not None:
                progress(done.steps, total)
    if dropped:
        done.notes.append(f"not taken over: infos {', '.join(sorted(dropped))}")
    return done


def _open(source: str) -> Any:
    minari = _minari()
    path = Path(source)
    folder = path / "data" if (path / "data").is_dir() else path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions and requirements of environments, which are not made here
            return minari.MinariDataset(folder) if folder.is_dir() else minari.load_dataset(source)
    except (FileNotFoundError, ValueError, KeyError, AssertionError) as error:
        raise StoreError(f"{source} is not a Minari dataset that can be read here: {error}") from error


def _columns(
    found: Any, dataset: Any, fields: Any, write: Any, action: ActionSpec, before: int, dropped: set[str]
) -> dict[str, Array]:
    count = len(found)
    obs = {field.name: np.zeros((count + 1, *field.shape), field.dtype) for field in fields}
    for t in range(count + 1):
        try:
            write(_row(found.observations, t), obs, t)
        except (ValueError, IndexError) as error:
            raise StoreError(f"Minari dataset {dataset.id}, episode {found.id}, observation {t}: {error}") from error
    columns = {OBS + name: rows for name, rows in obs.items()}
    columns["action"] = _stored_actions(action, np.asarray(found.actions))
    columns["reward"] = np.asarray(found.rewards, np.float32)
    infos = found.infos or {}
    columns["global_step"] = _counter(infos, "global_step", count, before + np.arange(count))
    columns["version"] = _counter(infos, "version", count, np.zeros(count))
    dropped |= set(infos) - {"global_step", "version", "step"}
    return columns


def _row(values: Any, t: int) -> Any:
    if isinstance(values, Mapping):
        return {name: _row(part, t) for name, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_row(part, t) for part in values)
    return values[t]


def _stored_actions(spec: ActionSpec, actions: Array) -> Array:
    if spec.kind == "continuous":
        return actions.reshape(len(actions), -1).astype(np.float32)
    start = np.array(spec.start, np.int64) if spec.kind == "multi_discrete" else spec.start[0]
    return actions.astype(np.int64) - start


def _counter(infos: Mapping[str, Any], name: str, count: int, otherwise: Array) -> Array:
    """Return a column that our own export put into ``infos``; anything else is replaced by ``otherwise``."""
    rows = np.asarray(infos.get(name, ()))
    if rows.dtype.kind in "iu" and rows.shape in ((count,), (count + 1,)):
        return rows[:count].astype(np.int64)
    return otherwise.astype(np.int64)


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that JSON can hold."""
    return {name: value for name, value in kwargs.items() if isinstance(value, str | int | float | bool | None)}
