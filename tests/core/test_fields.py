"""What an environment may not promise."""

import pytest

from rollmill.core.fields import ActionSpec, EnvSpec


@pytest.mark.parametrize("wrong", [{"agents": 0}, {"frames_per_step": 0}])
def test_an_environment_without_agents_or_frames_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        EnvSpec("nobody", (), ActionSpec("discrete", nvec=(2,), start=(0,)), **wrong)
