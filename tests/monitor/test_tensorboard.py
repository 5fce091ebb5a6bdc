import math
import resource
import signal
from pathlib import Path

import pytest

from rollmill.core.errors import RunFolderError
from rollmill.monitor.tensorboard import TensorBoardSink

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
plugin_data_pb2 = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tb")
    sink.write(10, {"episode/return": 1.5, "lr": 0.25})
    sink.write(6_000_000_000, {"episode/return": 2.5})
    sink.close()
    assert read(tmp_path / "tb") == {
        "episode/return": [(10, 1.5), (6_000_000_000, 2.5)],
        "lr": [(10, 0.25)],
    }


def test_values_that_are_not_finite_or_too_large_are_written_as_such(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(1, {"a": math.nan, "b": math.inf, "c": 1e300})
    sink.close()
    found = read(tmp_path)
    assert math.isnan(found["a"][0][1])
    assert found["b"] == found["c"] == [(1, math.inf)]


def test_a_resumed_run_hides_what_came_after_the_point_it_continues_from(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for frames in (100, 200, 300):
        first.write(frames, {"x": 1.0})
    first.close()
    second = TensorBoardSink(tmp_path, resume_step=200)  # within the same second: a file of its own
    second.write(250, {"x": 2.0})
    second.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path) == {"x": [(100, 1.0), (200, 1.0), (250, 2.0)]}


def test_events_reach_the_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    now = 0.0
    sink = TensorBoardSink(tmp_path, flush_s=10, clock=lambda: now)
    sink.write(1, {"x": 1.0})
    now = 10.0
    sink.write(2, {"x": 2.0})
    assert read(tmp_path) == {"x": [(1, 1.0), (2, 2.0)]}
    sink.close()


def test_a_full_disk_is_an_error_not_a_hang(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, flush_s=0)
    sink.write(1, {"x": 1.0})
    (file,) = tmp_path.iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(RunFolderError, match="TensorBoard events cannot be written: File too large"):
            sink.write(2, {"x": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    sink.write(3, {"x": 3.0})  # once there is space again nothing is missing
    sink.close()
    assert read(tmp_path) == {"x": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="file: TensorBoard events cannot be written: File exists"):
        TensorBoardSink(tmp_path / "file")


def test_a_disk_that_fills_up_at_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TensorBoardSink(tmp_path)

    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink._writer, "close", fail)
    with pytest.raises(RunFolderError, match="No space left on device"):
        sink.close()
    monkeypatch.undo()
    sink._writer.close()


def test_a_closed_sink_refuses_events(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.close()
    with pytest.raises(ValueError, match="is closed"):
        sink.write(1, {})


def test_the_page_of_hyperparameters_has_what_a_run_differs_in(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tb")
    sink.hparams({"learning.gamma": 0.9, "model.mlp": [64, 64], "env.vector": True}, ["episode/return"])
    sink.write(10, {"episode/return": 5.0})
    sink.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    content = events.PluginTagToContent("hparams")
    begun = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info
    assert begun.hparams["learning.gamma"].number_value == 0.9
    assert begun.hparams["model.mlp"].string_value == "[64, 64]"
    assert begun.hparams["env.vector"].bool_value is True
    about = plugin_data_pb2.HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment
    assert [info.name.tag for info in about.metric_infos] == ["episode/return"]
    assert read(tmp_path / "tb") == {"episode/return": [(10, 5.0)]}
