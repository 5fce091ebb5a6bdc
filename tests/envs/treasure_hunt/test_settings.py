from typing import Any

import pytest

from rollmill.envs.treasure_hunt.settings import HuntSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 0}, "start: 0 is not a site from 1 to 15"),
        ({"end": 16}, "end: 16 is not a site"),
        ({"start": True}, "start: True"),
        ({"start": 1}, "both site 1"),
        ({"treasure_num": 14}, "14 is not a whole number from 0 to 13"),
        ({"treasure_num": -1}, "-1 is not"),
        ({"treasure_num": [3, 2.5]}, "2.5 is not"),
        ({"treasure_num": []}, "a number, a list"),
        ({"treasure_num": [[0, 1], []]}, "a number, a list of numbers or of lists"),
        ({"treasure_num": [[0, "one"]]}, "'one' is not"),
        ({"treasure_num": [[0, 14]]}, "14 is not"),
        ({"treasure_num": [[0, True]]}, "True is not"),
        ({"treasure_num": [[[0]]]}, r"\[0\] is not"),
        ({"treasure_num": ["uniform", 3]}, "a number, a list"),
        ({"treasure_num": "many"}, "'uniform' or 'normal'"),
        ({"treasure_id": [3, 3]}, "twice"),
        ({"treasure_id": [1]}, "site 1 is start or end"),
        ({"treasure_id": [0]}, "0 is not a site"),
        ({"max_step": 0}, "max_step=0"),
        ({"map_seed": -1}, "map_seed=-1"),
        ({"reach": 0.0}, "positive"),
        ({"random_start": 1.5}, "shares of the run"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HuntSettings(**settings)


def test_places_leave_out_start_and_end() -> None:
    assert HuntSettings().places == tuple(range(3, 16))
    assert HuntSettings(start=5, end=1).places == (3, 4, *range(6, 16), 2)
    assert len(HuntSettings(start=5, end=7).places) == 13
