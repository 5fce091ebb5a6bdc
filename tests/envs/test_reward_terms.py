import numpy as np
import pytest

from rollmill.envs.reward_terms import RewardTerms


def test_the_reward_is_the_weighted_sum_and_sums_are_kept_by_term() -> None:
    terms = RewardTerms({"goal": 1.0, "step": 1.0}, {"goal": 0.5}, lanes=2)
    np.testing.assert_allclose(terms.step(goal=np.array([10.0, 0.0]), step=-1.0), [4.0, -1.0])
    np.testing.assert_allclose(terms.step(step=-1.0), [-1.0, -1.0])
    sums = terms.sums(scale=2.0)
    np.testing.assert_allclose(sums["reward_goal"], [10.0, 0.0])
    np.testing.assert_allclose(sums["reward_step"], [-4.0, -4.0])
    terms.reset(np.array([1]))
    np.testing.assert_allclose(terms.sums()["reward_step"], [-2.0, 0.0])


def test_a_weight_of_zero_takes_a_term_out() -> None:
    terms = RewardTerms({"goal": 1.0}, {"goal": 0})
    assert terms.step(goal=3.0) == 0


def test_a_term_follows_its_variable_from_one_episode_to_the_next() -> None:
    variables = {"reward_goal": 3.0, "progress": 0.0}
    terms = RewardTerms({"goal": 1.0, "step": 1.0}, {"goal": 0.5}, variables=variables)
    assert terms.step(goal=1.0, step=-1.0) == 2.0
    variables["reward_goal"] = -2.0
    assert terms.step(goal=1.0) == 3.0, "an episode keeps what it began with"
    terms.reset()
    assert terms.step(goal=1.0) == -2.0
    assert terms.moves("goal")
    with pytest.raises(ValueError, match=r"no reward term 'gaol'; did you mean 'goal'"):
        RewardTerms({"goal": 1.0}, variables={"reward_gaol": 1.0})


@pytest.mark.parametrize("weight", [True, "1", float("nan"), None])
def test_weights_are_numbers(weight: object) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        RewardTerms({"goal": 1.0}, {"goal": weight})  # type: ignore[dict-item]
