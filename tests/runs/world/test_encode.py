import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damaging import flip, places
from image_stores import (
    POINTS,
    contents,
    damage_images,
    image_episode,
    image_schema,
    image_store,
    same_contents,
    tiny_encoder,
    two_eyes,
)
from running import SUPPORT

from rollmill.core.errors import ConfigError, StoreError
from rollmill.runs.world import encode as world_encode
from rollmill.runs.world.encode import Encoded, EncodeOptions, encode_store
from rollmill.store.episode import Episode
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store
from rollmill.store.split import Split
from rollmill.store.writer import StoreWriter
from rollmill.worldmodel.encoder.file import load_encoder, save_encoder

SHARDS = 120
ONE_EACH = 1
"""``shard_bytes`` with which every input shard is a group of its own."""


class Work:
    """A store of 120 shards, an encoder, and what one instance makes of them."""

    def __init__(self, folder: Path) -> None:
        self.store = image_store(folder / "store", SHARDS, steps=3, shard_bytes=1)
        self.encoder = tiny_encoder(folder / "encoder.bin")
        self.out = folder / "latents"
        self.outcome = encode_store(self.options(self.out))
        self.latents = contents(self.out)

    def options(self, out: Path, **more: object) -> EncodeOptions:
        return EncodeOptions(self.store, self.encoder, out, **{"shard_bytes": ONE_EACH, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return Work(tmp_path_factory.mktemp("encode"))


def small_copy(work: Work, folder: Path, shards: int = 8) -> Path:
    """A store of the first shards."""
    with StoreWriter(folder, image_schema(), sync="seal", shard_bytes=1) as writer, Store(work.store) as store:
        for i in range(shards):
            writer.copy_episode(store, i)
    return folder


def test_latents_and_everything_else_of_every_episode(work: Work) -> None:
    assert work.outcome.complete
    assert (len(work.outcome.encoded), work.outcome.done, work.outcome.exit_code) == (SHARDS, SHARDS, 0)
    images = contents(work.store)
    assert work.latents.keys() == images.keys()
    for uid, latent in work.latents.items():
        seen = images[uid]
        assert latent.info == seen.info
        assert latent.obs["mean"].shape == latent.obs["std"].shape == (len(seen) + 1, 4)
        assert (latent.obs["std"] > 0).all()
        assert latent.actions.tobytes() == seen.actions.tobytes()
        assert latent.rewards.tobytes() == seen.rewards.tobytes()
        assert (latent.terminated, latent.truncated, latent.stats) == (seen.terminated, seen.truncated, seen.stats)
    recipe = json.loads((work.out / "made_by.json").read_text())
    assert recipe["finished"]
    assert recipe["source"] == str(work.store)
    assert len(recipe["encoder_checksum"]) == 64


@pytest.mark.parametrize(("shards", "ways"), [(SHARDS, 12), (8, 3)])
def test_any_number_of_ways_gives_what_one_gives(work: Work, tmp_path: Path, shards: int, ways: int) -> None:
    store = work.store if shards == SHARDS else small_copy(work, tmp_path / "store", shards)
    options = [
        EncodeOptions(store, work.encoder, tmp_path / "out", shards=ways, shard=shard)
        for shard in reversed(range(ways))
    ]
    done = [encode_store(each) for each in options]
    assert [outcome.complete for outcome in done] == [False] * (ways - 1) + [True]
    names = [name for outcome in done for name in outcome.encoded]
    assert len(names) == len(set(names)) == shards
    sizes = [len(outcome.encoded) for outcome in done]
    assert max(sizes) - min(sizes) == (shards % ways > 0)
    assert same_contents(contents(tmp_path / "out"), {uid: work.latents[uid] for uid in contents(store)})


def test_a_shard_that_another_instance_is_at_is_left_to_it(work: Work, tmp_path: Path) -> None:
    store = small_copy(work, tmp_path / "store", 3)
    options = EncodeOptions(store, work.encoder, tmp_path / "out", shard_bytes=ONE_EACH)
    job = world_encode._Job(options)
    job.prepare()
    with job._claim(list(job._groups.all())[1]) as held:
        assert held
        outcome = encode_store(options)
    assert outcome.busy == [job.sealed[1]]
    assert (outcome.done, outcome.complete, outcome.exit_code) == (2, False, 0)
    assert "1 shards are being encoded by other instances" in outcome.text()
    assert encode_store(options).encoded == [job.sealed[1]]


def test_without_locks_the_link_still_lets_one_through(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    store = small_copy(work, tmp_path / "store", 3)
    options = EncodeOptions(store, work.encoder, tmp_path / "out", shard_bytes=ONE_EACH)
    monkeypatch.setattr(world_encode.fcntl, "flock", refuse)
    encode_store(options)
    assert "no locks" in caplog.text
    for mark in (tmp_path / "out" / "done").iterdir():
        mark.unlink()  # as if another instance had published a moment ago
    assert len(encode_store(options).encoded) == 3
    assert len(contents(tmp_path / "out")) == 3


@pytest.fixture(scope="module")
def killed(work: Work, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of instances that were killed -9, one for each point, and of four that worked at the same time."""
    folder = tmp_path_factory.mktemp("killed")
    store = small_copy(work, folder / "store")
    words = [sys.executable, str(SUPPORT / "image_stores.py"), str(store), str(work.encoder), str(folder)]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_instance_run_again_completes_it(work: Work, killed: Path, point: str) -> None:
    out = killed / point
    assert list((out / "work").iterdir())  # what was under way
    assert len(list((out / "done").iterdir())) == 2
    outcome = encode_store(EncodeOptions(killed / "store", work.encoder, out))
    assert outcome.complete
    assert (outcome.already, len(outcome.encoded)) == (2, 6)
    assert not list((out / "work").iterdir())
    expected = {uid: work.latents[uid] for uid in contents(killed / "store")}
    assert same_contents(contents(out), expected)


def test_instances_at_the_same_time_share_the_work(work: Work, killed: Path) -> None:
    """Four processes with the same share: claims keep them apart."""
    done = [json.loads((killed / f"together-{number}.json").read_text()) for number in range(4)]
    names = [name for outcome in done for name in outcome["encoded"]]
    assert len(names) == len(set(names)) == 8
    assert any(outcome["complete"] for outcome in done)
    assert same_contents(contents(killed / "together"), {uid: work.latents[uid] for uid in contents(killed / "store")})
    again = encode_store(EncodeOptions(killed / "store", work.encoder, killed / "together"))
    assert (again.already, again.encoded, again.complete) == (8, [], True)


@pytest.mark.parametrize("shard_bytes", [ONE_EACH, 1 << 30])
def test_a_corrupt_shard_is_named_and_the_rest_goes_on(work: Work, tmp_path: Path, shard_bytes: int) -> None:
    store = small_copy(work, tmp_path / "store")
    refs = list_shards(store)
    assert damage_images(store, 2) == refs[2].name
    refs[5].path.unlink()  # a shard that somebody has removed
    _, end, _ = next(iter(places(refs[6]).values()))[-1]
    flip(refs[6].path, end + 40)  # and one whose episode is no longer listed anywhere
    refs[6].index_path.unlink()
    options = EncodeOptions(store, work.encoder, tmp_path / "out", shard_bytes=shard_bytes)
    outcome = encode_store(options)
    assert outcome.exit_code == 1
    assert outcome.failed.keys() == {refs[2].name, refs[5].name, refs[6].name}
    assert "checksum" in outcome.failed[refs[2].name]
    assert "missing" in outcome.failed[refs[5].name]
    assert (outcome.done, outcome.total, outcome.complete) == (5, 8, False)
    assert refs[2].name in outcome.text()
    assert not json.loads((tmp_path / "out" / "made_by.json").read_text())["finished"]
    assert len(contents(tmp_path / "out")) == 5
    assert encode_store(options).failed.keys() == outcome.failed.keys()


def test_a_shard_that_is_still_written_is_named(work: Work, tmp_path: Path) -> None:
    store = small_copy(work, tmp_path / "store", 2)
    with StoreWriter(store, image_schema()) as writer:
        writer.add_episode(image_episode(900, 4))
        outcome = encode_store(EncodeOptions(store, work.encoder, tmp_path / "out"))
        assert next(iter(outcome.failed.values())).startswith("it is not sealed")
        assert outcome.exit_code == 1
    assert encode_store(EncodeOptions(store, work.encoder, tmp_path / "out")).complete


def test_processes_divide_a_share(work: Work, tmp_path: Path) -> None:
    outcome = encode_store(work.options(tmp_path / "out", shards=3, shard=1, sub_shards=2))
    assert len(outcome.encoded) == 40
    assert sorted(outcome.encoded) == sorted(ref.name for ref in list_shards(work.store))[1::3]
    expected = {uid: episode for uid, episode in work.latents.items() if (uid - 1) % 3 == 1}
    assert same_contents(contents(tmp_path / "out"), expected)


def test_another_encoder_or_store_is_refused(work: Work, tmp_path: Path) -> None:
    other = tiny_encoder(tmp_path / "other.bin", seed=9)
    with pytest.raises(StoreError, match="begun with encoder_checksum="):
        encode_store(EncodeOptions(work.store, other, work.out))
    with pytest.raises(StoreError, match="begun with source="):
        encode_store(EncodeOptions(small_copy(work, tmp_path / "copy", 1), work.encoder, work.out))
    with pytest.raises(StoreError, match="holds other data"):
        encode_store(EncodeOptions(work.store, work.encoder, tmp_path / "copy"))
    larger = tiny_encoder(tmp_path / "larger.bin", shape=(32, 32, 3))
    with pytest.raises(ConfigError, match=r"encodes images of \(32, 32, 3\)"):
        encode_store(EncodeOptions(work.store, larger, tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 3, "shard": 3}, "the first is 0, the last 2"),
        ({"sub_shards": 0}, "--sub-shards"),
        ({"gpu": 99}, "GPU"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    work: Work, tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        encode_store(work.options(tmp_path / "out", **options))
    with pytest.raises(ConfigError, match="is the store that is read"):
        encode_store(work.options(work.store))


def test_progress_and_outcome_in_words(work: Work, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    store = small_copy(work, tmp_path / "store", 2)
    outcome = encode_store(EncodeOptions(store, work.encoder, tmp_path / "out"), lambda *n: seen.append(n))
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert "encoded 2 shards (2 episodes, 9 images)" in outcome.text()
    assert json.loads(json.dumps(outcome.to_dict()))["complete"]
    shutil.rmtree(tmp_path / "out")
    assert isinstance(outcome, Encoded)
    assert all(isinstance(episode, Episode) for episode in work.latents.values())


def test_latents_of_many_shards_go_into_files_of_a_chosen_size(work: Work, tmp_path: Path) -> None:
    with Store(work.out) as store:
        numbers = (store.table.steps + len(store)) * store.schema.row_bytes
    options = work.options(tmp_path / "out", shard_bytes=numbers // 5)
    outcome = encode_store(options)
    assert outcome.complete
    files = [ref.bytes for ref in list_shards(tmp_path / "out")]
    assert len(files) == outcome.made == 5
    assert max(files) < 1.2 * min(files)
    assert same_contents(contents(tmp_path / "out"), work.latents)
    assert encode_store(options).already == SHARDS


def test_a_shard_that_has_been_repaired_gets_a_file_of_its_own(work: Work, tmp_path: Path) -> None:
    store = small_copy(work, tmp_path / "store", 4)
    ref = list_shards(store)[1]
    good = ref.path.read_bytes()
    damage_images(store, 1)
    options = EncodeOptions(store, work.encoder, tmp_path / "out")
    first = encode_store(options)
    assert (len(first.encoded), list(first.failed), first.made) == (3, [ref.name], 1)
    assert list(encode_store(options).failed) == [ref.name]
    ref.path.write_bytes(good)
    rest = encode_store(options)
    assert (rest.encoded, rest.complete) == ([ref.name], True)
    assert same_contents(contents(tmp_path / "out"), {uid: work.latents[uid] for uid in contents(store)})


def test_several_images_are_encoded_each_under_its_name(work: Work, tmp_path: Path) -> None:
    store = two_eyes(tmp_path / "store")
    both = EncodeOptions(store, work.encoder, tmp_path / "both", field=("left", "right"))
    assert encode_store(both).images == 2 * 2 * 5
    encode_store(EncodeOptions(store, work.encoder, tmp_path / "left", field=("left",)))
    for uid, episode in contents(tmp_path / "both").items():
        assert set(episode.obs) == {"left_mean", "left_std", "right_mean", "right_std"}
        alone = contents(tmp_path / "left")[uid]
        assert set(alone.obs) == {"mean", "std", "right"}
        assert np.array_equal(episode.obs["left_mean"], alone.obs["mean"])
        assert not np.array_equal(episode.obs["left_mean"], episode.obs["right_mean"])


def with_split(work: Work, path: Path) -> Path:
    """The same encoder in a file that says how its data were divided."""
    encoder = load_encoder(work.encoder)
    save_encoder(path, encoder, {"config": {"seed": 3, "images": {"validation": 0.3}}})
    return path


def test_only_one_side_of_the_split_is_encoded(work: Work, tmp_path: Path) -> None:
    encoder = with_split(work, tmp_path / "encoder.bin")
    sides = {}
    for side in ("train", "validation"):
        outcome = encode_store(EncodeOptions(work.store, encoder, tmp_path / side, split=side))  # type: ignore[arg-type]
        assert outcome.complete
        sides[side] = contents(tmp_path / side)
    with Store(work.store) as store:
        training, held_out = Split(0.3, 3)(store.table)
        assert set(sides["train"]) == set(store.table.uid[training].tolist())
        assert set(sides["validation"]) == set(store.table.uid[held_out].tolist())
    assert same_contents({**sides["train"], **sides["validation"]}, work.latents)
    with pytest.raises(StoreError, match="begun with split='train'"):
        encode_store(EncodeOptions(work.store, encoder, tmp_path / "train"))
    with pytest.raises(ConfigError, match="does not say which episodes it has learnt from"):
        encode_store(EncodeOptions(work.store, work.encoder, tmp_path / "none", split="train"))
