import pytest
import torch

from rollmill.models.precision import autocast


@pytest.mark.parametrize(("dtype", "expected"), [(None, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_matrices_are_multiplied_in_that_type(dtype: torch.dtype | None, expected: torch.dtype) -> None:
    with autocast(torch.device("cpu"), dtype):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is expected
