import pytest
import torch

from rollmill.core.errors import ConfigError
from rollmill.optim import device
from rollmill.optim.device import matmul_dtype

CPU = torch.device("cpu")


def test_bfloat16_is_taken_where_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: False)
    assert matmul_dtype("auto", CPU) is None
    with pytest.raises(ConfigError, match=r"fit\.precision=bfloat16: this machine is slower with it"):
        matmul_dtype("bfloat16", CPU)
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: True)
    assert matmul_dtype("auto", CPU) is matmul_dtype("bfloat16", CPU) is torch.bfloat16
    assert matmul_dtype("float32", CPU) is None
