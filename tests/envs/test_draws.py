import numpy as np

from rollmill.envs.draws import WholeNumber


def many(described: object, progress: float = 1.0, count: int = 5000) -> np.ndarray:
    rng = np.random.default_rng(0)
    number = WholeNumber("n", described, 0, 13)  # type: ignore[arg-type]
    return np.array([number.draw(rng, progress) for _ in range(count)])


def test_uniform_takes_all_alike() -> None:
    counts = np.bincount(many("uniform"), minlength=14)
    assert len(counts) == 14
    assert abs(counts - 5000 / 14).max() < 5 * np.sqrt(5000 / 14)


def test_normal_is_around_the_middle_and_within_the_range() -> None:
    drawn = many("normal")
    assert 6.3 < drawn.mean() < 6.7
    assert 2.0 < drawn.std() < 3.0
    assert drawn.min() >= 0
    assert drawn.max() <= 13


def test_a_list_goes_by_progress() -> None:
    assert [many([1, 3, 5, 13], progress, 1)[0] for progress in (0.0, 0.24, 0.25, 0.6, 0.99, 1.0)] == [
        1,
        1,
        3,
        5,
        13,
        13,
    ]


def test_a_stage_draws_all_its_members_alike() -> None:
    stages = [[0, 1], 5, [2, 7, 13]]
    assert set(many(stages, 0.0, 200)) == {0, 1}
    assert set(many(stages, 0.5, 20)) == {5}
    drawn = many(stages, 1.0, 3000)
    for member in (2, 7, 13):
        assert abs((drawn == member).sum() - 1000) < 5 * np.sqrt(1000)


def test_a_member_that_stands_twice_is_drawn_twice_as_often() -> None:
    assert 0.6 < (many([[1, 13, 13]]) == 13).mean() < 0.73


def test_a_number_is_itself() -> None:
    assert set(many(7, 0.5, 10)) == {7}
