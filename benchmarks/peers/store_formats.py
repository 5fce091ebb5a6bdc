"""Writes episodes into one container and reads windows back; prints one JSON line. See benchmarks/store.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 32
BLOCK = 16
"""Steps compressed together, where the container lets one choose."""

Episode = dict[str, np.ndarray]
Read = Callable[[int, int, int], Any]
"""(episode, start, stop) -> observations, actions and rewards of those steps."""


def main() -> None:
    name, frames, folder, seconds, source = sys.argv[1:]
    sys.path.insert(0, source)
    episodes = load(Path(frames))
    write, open_, size = CONTAINERS[name]
    warm, path = Path(folder, "warm"), Path(folder, "real")
    for target in (warm, path):
        target.mkdir(parents=True)
    write(warm, episodes[:1])  # imports and first calls are not what is measured
    begun = time.process_time()
    write(path, episodes)
    wrote = time.process_time() - begun
    raw = sum(array.nbytes for episode in episodes for array in episode.values())
    steps = sum(len(episode["action"]) for episode in episodes)
    read = open_(path)
    check(read, episodes)
    result = {
        "write_mb_s": raw / wrote / 1e6,
        "kb_per_step": size(path) / steps / 1e3,
        "windows_s": rate(read, episodes, WINDOW, float(seconds)),
        "frames_s": rate(read, episodes, 1, float(seconds)),
    }
    print(json.dumps(result))


def load(path: Path) -> list[Episode]:
    with np.load(path) as data:
        return [{name: data[f"{name}{k}"] for name in ("obs", "action", "reward")} for k in range(int(data["count"]))]


def check(read: Read, episodes: list[Episode]) -> None:
    """What comes back is what was written."""
    for k, episode in enumerate(episodes[:3]):
        stop = min(WINDOW, len(episode["action"]))
        obs, action, reward = read(k, 3, stop)
        for got, name in ((obs, "obs"), (action, "action"), (reward, "reward")):
            np.testing.assert_array_equal(got, episode[name][3:stop])


def rate(read: Read, episodes: list[Episode], length: int, seconds: float) -> float:
    """Random windows per second of processor time."""
    rng = np.random.default_rng(0)
    long = [k for k, episode in enumerate(episodes) if len(episode["action"]) > length]
    count, begun = 0, time.process_time()
    while (took := time.process_time() - begun) < seconds:
        k = int(rng.choice(long))
        start = int(rng.integers(0, len(episodes[k]["action"]) - length))
        read(k, start, start + length)
        count += 1
    return count / took


def disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# -- rollmill ----------------------------------------------------------------------------------------


def rollmill_writer(codec: str) -> Callable[[Path, list[Episode]], None]:
    def write(path: Path, episodes: list[Episode]) -> None:
        from rollmill.core.fields import ActionSpec, EnvSpec, Field
        from rollmill.store.format.schema import StoreSchema
        from rollmill.store.writer import StoreWriter

        shape = episodes[0]["obs"].shape[1:]
        spec = EnvSpec("doom", (Field("obs", "uint8", shape),), ActionSpec("discrete", nvec=(5,), start=(0,)))
        schema = StoreSchema.for_env(spec, image_codec=codec)
        with StoreWriter(path / "store", schema, block=BLOCK) as writer:
            for k, episode in enumerate(episodes):
                writer.begin(k)
                for begin in range(0, len(episode["action"]), WINDOW):  # as the recorder does: segment by segment
                    rows = slice(begin, begin + WINDOW)
                    count = len(episode["action"][rows])
                    writer.append(
                        k,
                        {
                            "obs:obs": episode["obs"][begin : begin + count],
                            "action": episode["action"][rows],
                            "reward": episode["reward"][rows],
                            "global_step": np.arange(begin, begin + count),
                            "version": 0,
                        },
                    )
                writer.end(k, final={"obs:obs": episode["obs"][-1]}, truncated=True)

    return write


def rollmill_open(path: Path) -> Read:
    from rollmill.store.reader import Store

    store = Store(path / "store", cache_bytes=0)
    columns = ("obs:obs", "action", "reward")

    def read(k: int, start: int, stop: int) -> Any:
        rows = store.read(k, start, stop, columns)
        return [rows[name] for name in columns]

    return read


def rollmill_cache_open(path: Path) -> Read:
    from rollmill.store.cache import DecodedCache
    from rollmill.store.reader import Store

    store = Store(path / "store")
    cache = DecodedCache(store, path / "cache")
    columns = ("obs:obs", "action", "reward")

    def read(k: int, start: int, stop: int) -> Any:
        rows = cache.read(k, start, stop, columns)
        return [np.array(rows[name]) for name in columns]

    return read


# -- the others --------------------------------------------------------------------------------------


def minari_write(path: Path, episodes: list[Episode]) -> None:
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for k, episode in enumerate(episodes):
        ended = np.zeros(len(episode["action"]), bool)
        truncated = ended.copy()
        truncated[-1] = True
        buffers.append(
            EpisodeBuffer(
                id=k,
                observations=episode["obs"],
                actions=episode["action"],
                rewards=list(episode["reward"]),
                terminations=list(ended),
                truncations=list(truncated),
            )
        )
    minari.create_dataset_from_buffers(
        "doom/frames-v0",
        buffers,
        observation_space=gym.spaces.Box(0, 255, episodes[0]["obs"].shape[1:], np.uint8),
        action_space=gym.spaces.Discrete(5),
        jpeg_encoding=False,  # its default is lossy
    )


def minari_open(path: Path) -> Read:
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    import minari

    dataset = minari.load_dataset("doom/frames-v0")

    def read(k: int, start: int, stop: int) -> Any:  # it gives whole episodes
        episode = dataset[k]
        return episode.observations[start:stop], episode.actions[start:stop], np.float32(episode.rewards[start:stop])

    return read


def npz_write(path: Path, episodes: list[Episode]) -> None:
    for k, episode in enumerate(episodes):
        np.savez_compressed(path / f"{k}.npz", **episode)


def npz_open(path: Path) -> Read:
    def read(k: int, start: int, stop: int) -> Any:
        with np.load(path / f"{k}.npz") as data:
            return [data[name][start:stop] for name in ("obs", "action", "reward")]

    return read


def h5py_write(path: Path, episodes: list[Episode]) -> None:
    import h5py
    import hdf5plugin

    with h5py.File(path / "data.h5", "w") as file:
        for k, episode in enumerate(episodes):
            for name, array in episode.items():
                chunks = (min(BLOCK, len(array)), *array.shape[1:])
                file.create_dataset(
                    f"{k}/{name}", data=array, chunks=chunks, fletcher32=True, **hdf5plugin.Zstd(clevel=1)
                )


def h5py_open(path: Path) -> Read:
    import h5py
    import hdf5plugin  # noqa: F401 - registers the codec

    file = h5py.File(path / "data.h5", "r", rdcc_nbytes=0)
    sets = {}

    def read(k: int, start: int, stop: int) -> Any:
        if k not in sets:
            sets[k] = [file[f"{k}/{name}"] for name in ("obs", "action", "reward")]
        return [x[start:stop] for x in sets[k]]

    return read


def zarr_write(path: Path, episodes: list[Episode]) -> None:
    import zarr
    from zarr.codecs import ZstdCodec

    group = zarr.open_group(str(path / "data.zarr"), mode="w")
    for k, episode in enumerate(episodes):
        for name, array in episode.items():
            chunks = (min(BLOCK, len(array)), *array.shape[1:])
            target = group.create_array(
                f"{k}/{name}",
                shape=array.shape,
                dtype=array.dtype,
                chunks=chunks,
                compressors=ZstdCodec(level=1, checksum=True),
            )
            target[:] = array


def zarr_open(path: Path) -> Read:
    import zarr

    group = zarr.open_group(str(path / "data.zarr"), mode="r")
    arrays = {}

    def read(k: int, start: int, stop: int) -> Any:
        if k not in arrays:
            arrays[k] = [group[f"{k}/{name}"] for name in ("obs", "action", "reward")]
        return [x[start:stop] for x in arrays[k]]

    return read


def parquet_write(path: Path, episodes: list[Episode]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    width = int(np.prod(episodes[0]["obs"].shape[1:]))
    schema = pa.schema([("obs", pa.binary(width)), ("action", pa.int64()), ("reward", pa.float32())])
    for k, episode in enumerate(episodes):
        count = len(episode["action"])
        flat = pa.py_buffer(np.ascontiguousarray(episode["obs"][:count]))
        obs = pa.Array.from_buffers(pa.binary(width), count, [None, flat])
        table = pa.table([obs, episode["action"], episode["reward"]], schema=schema)
        parquet.write_table(
            table,
            path / f"{k}.parquet",
            compression="zstd",
            compression_level=1,
            row_group_size=BLOCK,
            use_dictionary=False,
            write_page_checksum=True,
        )


def parquet_open(path: Path) -> Read:
    from pyarrow import parquet

    files: dict[int, Any] = {}
    shape = (72, 128, 3)

    def read(k: int, start: int, stop: int) -> Any:
        if k not in files:
            files[k] = parquet.ParquetFile(path / f"{k}.parquet", page_checksum_verification=True)
        groups = range(start // BLOCK, (stop - 1) // BLOCK + 1)
        table = files[k].read_row_groups(list(groups)).combine_chunks()
        begin = start - groups.start * BLOCK
        rows = slice(begin, begin + stop - start)
        obs = np.frombuffer(table["obs"].chunk(0).buffers()[-1], np.uint8).reshape(-1, *shape)
        return obs[rows].copy(), table["action"].to_numpy()[rows], table["reward"].to_numpy()[rows]

    return read


def memmap_write(path: Path, episodes: list[Episode]) -> None:
    for k, episode in enumerate(episodes):
        for name, array in episode.items():
            np.save(path / f"{k}.{name}.npy", array)


def memmap_open(path: Path) -> Read:
    arrays: dict[int, list[np.ndarray]] = {}

    def read(k: int, start: int, stop: int) -> Any:
        if k not in arrays:
            names = ("obs", "action", "reward")
            arrays[k] = [np.load(path / f"{k}.{name}.npy", mmap_mode="r") for name in names]
        return [np.array(x[start:stop]) for x in arrays[k]]

    return read


def only(folder: str) -> Callable[[Path], int]:
    return lambda path: disk(path / folder)


CONTAINERS: dict[str, tuple[Callable[[Path, list[Episode]], None], Callable[[Path], Read], Callable[[Path], int]]] = {
    "rollmill": (rollmill_writer("auto"), rollmill_open, disk),
    "rollmill_zstd": (rollmill_writer("zstd:1"), rollmill_open, disk),
    "rollmill_cache": (rollmill_writer("auto"), rollmill_cache_open, only("store")),
    "minari": (minari_write, minari_open, disk),
    "npz": (npz_write, npz_open, disk),
    "h5py": (h5py_write, h5py_open, disk),
    "zarr": (zarr_write, zarr_open, disk),
    "parquet": (parquet_write, parquet_open, disk),
    "memmap": (memmap_write, memmap_open, disk),
}

if __name__ == "__main__":
    main()
