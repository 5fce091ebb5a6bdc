import json
from pathlib import Path

from image_stores import contents, damage_images, image_store, tiny_encoder, two_eyes
from running import Call

SMALL = ("encoder.size=3", "encoder.channels=[4, 8]", "fit.batch_size=8", "fit.steps=2", "fit.device=cpu")


def test_an_encoder_is_trained_and_used(call: Call, tmp_path: Path) -> None:
    image_store(tmp_path / "raw", 6)
    trained = call("world", "vae", "raw", "--out", "vae", *SMALL)
    assert trained.code == 0
    assert "encoder: vae/encoder.bin" in trained.out
    assert "2 updates" in trained.out
    assert "continuing from" in call("world", "vae", "raw", "--out", "vae", *SMALL).err
    other = call("world", "vae", "raw", "--out", "vae", *SMALL, "encoder.size=4")
    assert (other.code, "begun with other settings" in other.err) == (2, True)
    longer = call("world", "vae", "raw", "--out", "vae", "--resume", "fit.steps=4", "--json")
    assert longer.json["steps"] == 4
    (tmp_path / "vae" / "config.yaml").unlink()
    longer = call("world", "vae", "raw", "--out", "vae", "--resume", "fit.steps=5")
    assert "vae/config.yaml is missing: the settings are those of " in longer.err
    assert "encoder.size=3" in longer.out
    assert "reached fit.steps=5; 5 updates" in longer.out
    encoded = call("world", "encode", "raw", "vae", "--out", "latents", "--json")
    assert encoded.code == 0
    assert encoded.json["complete"]
    assert call("data", "verify", "latents").code == 0
    both = call("world", "vae", "raw", "--out", "vae", "--resume", "--overwrite")
    assert (both.code, "exclude each other" in both.err) == (2, True)
    assert call("world", "vae", "raw", "--out", "vae", "--overwrite", *SMALL, "--json").json["steps"] == 2


def test_shares_are_encoded_one_by_one_and_damage_is_named(call: Call, tmp_path: Path) -> None:
    store = image_store(tmp_path / "raw", 5, shard_bytes=1)
    tiny_encoder(tmp_path / "e.bin")
    bad = damage_images(store, 3)
    first = call("world", "encode", "raw", "e.bin", "--out", "z", "--shards", "2", "--shard", "0")
    assert first.code == 0
    second = call("world", "encode", "raw", "e.bin", "--out", "z", "--shards", "2", "--shard", "1")
    assert second.code == 1
    assert f"not encoded: {bad}" in second.out
    assert "4 of 5 shards are there" in second.out
    assert call("world", "encode", "raw", "e.bin", "--out", "z", "--shards", "2", "--shard", "2").code == 2


def test_the_field_is_asked_for_in_the_words_of_the_command(call: Call, tmp_path: Path) -> None:
    two_eyes(tmp_path / "raw")
    tiny_encoder(tmp_path / "e.bin")
    words = ("world", "encode", "raw", "e.bin", "--out", "z")
    refused = call(*words)
    assert refused.code == 2
    assert "several fields with images (left, right): choose one with --field NAME" in refused.err
    assert call(*words, "--field", "left", "right", "--shard-mb", "1").code == 0
    assert "right_mean" in next(iter(contents(tmp_path / "z").values())).obs
    assert "was begun with field='obs:left,obs:right'" in call(*words, "--field", "left").err
    assert "every field once" in call(*words, "--field", "left", "left").err
    assert "does not say which episodes" in call(*words[:-1], "y", "--field", "left", "--split", "train").err


def test_a_pipeline_runs_up_to_a_stage(call: Call, tmp_path: Path) -> None:
    (tmp_path / "my_world.yaml").write_text(
        "env: {id: toy_image, args: {size: 16, length: 4}}\n"
        "collect: {episodes: {random: 3}, workers: 1}\n"
        "vae:\n  encoder: {size: 3, channels: [4, 8]}\n  fit: {steps: 2, batch_size: 8}\n  tensorboard: false\n"
    )
    words = ("world", "run", "--config", "my_world.yaml", "--until", "vae")
    done = call(*words)
    assert done.code == 0, done.err
    assert "finished: collect done, vae done, " in done.out
    assert "encode waiting" in done.out
    again = call(*words, "--json")
    assert json.loads(again.out)["stages"]["vae"] == "skipped"
    assert (tmp_path / "runs" / "world" / "my_world" / "vae" / "encoder.bin").is_file()
    assert call("world", "run").code == 2
    assert "did you mean" in call(*words, "vae.fit.stepz=3").err
