"""Code without an address, by name, here and in other processes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading

import pytest
from own_envs import corridor_class

from rollmill.core import given
from rollmill.core.errors import ConfigError
from rollmill.core.imports import import_object
from rollmill.envs import make


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "_objects", {})
    monkeypatch.setattr(given, "_packed", {})


def test_what_others_can_import_is_named_by_its_place() -> None:
    assert given.give(make.make_env) == "rollmill.envs.make:make_env"
    assert given.packed() == "{}"


def test_what_nobody_can_import_is_kept_by_name() -> None:
    own = corridor_class()
    assert given.give(own) == "__main__:Corridor"
    assert import_object("__main__:Corridor", "env") is own
    newer = corridor_class()
    assert given.give(newer) == "__main__:Corridor"
    assert import_object("__main__:Corridor", "env") is newer


def test_names_of_things_that_have_none() -> None:
    assert given.give(lambda: None) == "__main__:lambda"
    assert given.give(functools.partial(corridor_class(), length=2)) == "__main__:Corridor"

    class Maker:
        def __call__(self) -> None: ...

    assert given.give(Maker()) == "__main__:Maker"


def test_another_process_gets_it_by_value() -> None:
    length = 7

    def corridor() -> object:
        return type("Corridor", (), {"length": length})()

    given.give(corridor)
    code = (
        "import sys; from rollmill.core import given; from rollmill.core.imports import import_object\n"
        "given.receive(sys.stdin.read()); assert 'cloudpickle' not in sys.modules\n"
        "print(import_object('__main__:corridor', 'env')().length)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=given.packed(), capture_output=True, text=True)
    assert done.stdout.strip() == "7", done.stderr


def test_what_cannot_be_sent_is_refused_where_it_is_needed() -> None:
    lock = threading.Lock()
    locked = given.give(lambda: lock)
    other = given.give(corridor_class())
    sent = given.packed()
    given.require_sendable(other)
    given.require_sendable("rollmill.envs.make:make_env")
    message = r"__main__:lambda cannot be sent to worker processes .*lock.*sampling.mode=serial"
    with pytest.raises(ConfigError, match=message):
        given.require_sendable(locked)
    given._objects.clear()
    given.receive(sent)
    assert given.find("Corridor")(2).length == 2
    with pytest.raises(ConfigError, match=message):
        given.find("lambda")
    assert given.find("nobody") is None


def test_what_is_broken_on_arrival_is_an_error_of_the_config() -> None:
    given.receive('{"Corridor": {"code": "bm90IGEgcGlja2xl"}}')
    with pytest.raises(ConfigError, match="__main__:Corridor cannot be made in another process"):
        given.find("Corridor")


def test_a_process_hands_on_what_it_was_given() -> None:
    given.receive('{"Corridor": {"code": "abc"}}')
    given.give(lambda: None)
    assert set(json.loads(given.packed())) == {"Corridor", "lambda"}
