import threading

import pytest
import torch
from torch import Tensor, nn

from rollmill.optim import replicas as replicas_module
from rollmill.optim.replicas import Replicas, thread_count

CPU = torch.device("cpu")


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def add(model: nn.Module, rows: Tensor) -> str:
    model(rows).square().sum().backward()
    return threading.current_thread().name


@pytest.mark.parametrize("kind", ["threads", "devices"])
def test_shares_add_up_in_the_first_network(kind: str) -> None:
    rows = torch.randn(7, 3)
    alone, model = network(), network()
    add(alone, rows)
    several = Replicas.on_threads(model, 3, "sharer") if kind == "threads" else Replicas.on_devices(model, [CPU] * 3)
    for _ in range(2):  # what was there before does not count
        names = several.gradients(add, rows.tensor_split(3))
    own = threading.current_thread().name
    assert [name == own for name in names] == [kind == "threads", False, False]
    assert all(name.startswith("sharer" if kind == "threads" else "fit") for name in names if name != own)
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad)
    several.close()


def test_the_caller_may_leave_all_work_to_other_threads() -> None:
    several = Replicas.on_threads(network(), 1, "sharer", caller_works=False)
    (name,) = several.gradients(add, [torch.ones(1, 3)])
    assert name.startswith("sharer")
    several.close()


def test_fewer_shares_than_networks_will_do() -> None:
    several = Replicas.on_threads(network(), 3)
    assert len(several.gradients(add, [torch.ones(1, 3)])) == 1
    assert several.networks[1].weight.grad is None
    several.close()


def test_a_gradient_that_only_another_network_has_is_not_lost() -> None:
    several = Replicas.on_threads(network(), 2)
    several.gradients(
        lambda model, share: add(model, share) if len(share) else "", [torch.ones(0, 3), torch.ones(1, 3)]
    )
    assert several.networks[0].weight.grad is not None
    several.close()


def test_threads_share_weights_and_devices_are_given_them() -> None:
    for several in (Replicas.on_threads(network(), 2), Replicas.on_devices(network(), [CPU, CPU])):
        first, other = several.networks
        with torch.no_grad():
            first.weight += 1
        several.refresh()
        assert torch.equal(first.weight, other.weight)
        several.close()


def test_what_fails_in_a_thread_comes_home() -> None:
    several = Replicas.on_threads(network(), 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        several.gradients(add, [torch.ones(1, 3), torch.ones(1, 4)])
    several.close()


def test_a_gpu_has_one_thread_and_a_cpu_as_many_as_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "available_cores", lambda: 6)
    assert thread_count(torch.device("cuda"), 4) == 1
    assert [thread_count(CPU, wanted) for wanted in (0, 1, 9)] == [6, 1, 9]
    assert [thread_count(CPU, 0, most) for most in (0, 1, 4, 99)] == [1, 1, 4, 6]
