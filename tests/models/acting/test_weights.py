"""Publishing weights: what a policy takes over is always one whole update."""

import threading

import torch
from torch import nn

from rollmill.models.acting.weights import WeightBoard


class Net(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.full((50, 50), value) for _ in range(20)])
        self.register_buffer("moment", torch.full((10,), value))

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for tensor in self.state_dict().values():
                tensor.fill_(value)

    def values(self) -> set[float]:
        return {float(x) for tensor in self.state_dict().values() for x in tensor.flatten()[[0, -1]]}


def test_parameters_and_buffers_are_copied() -> None:
    board = WeightBoard(Net(1.0))
    reader = Net(0.0)
    assert board.load_into(reader) == 0
    assert reader.values() == {1.0}


def test_later_changes_of_the_learner_are_not_seen_before_they_are_published() -> None:
    learner, reader = Net(1.0), Net(0.0)
    board = WeightBoard(learner)
    learner.fill(2.0)
    board.load_into(reader)
    assert reader.values() == {1.0}
    board.publish(learner, 5)
    assert board.version == 5
    assert board.load_into(reader) == 5
    assert reader.values() == {2.0}
    learner.fill(3.0)
    assert reader.values() == {2.0}


def test_a_reader_never_sees_half_an_update() -> None:
    board, learner, done = WeightBoard(Net(0.0)), Net(0.0), threading.Event()
    torn: list[set[float]] = []
    seen: set[int] = set()

    def read() -> None:
        reader = Net(-1.0)
        while not done.is_set():
            version = board.load_into(reader)
            seen.add(version)
            if reader.values() != {float(version)}:
                torn.append(reader.values())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    version = 0
    while version < 150 or (len(seen) < 10 and version < 100_000):  # until readers have had their turns
        version += 1
        learner.fill(float(version))
        board.publish(learner, version)
    done.set()
    for thread in threads:
        thread.join()
    assert torn == []
    assert len(seen) >= 10
