"""The user's code by name: found where a script would find it, and explained when it is not there."""

from __future__ import annotations

import sys

import pytest
from running import hostile_folder, train_here

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.imports import import_object, is_installed
from rollmill.store.parallel import map_unordered


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "garden.py").write_text(
        "from math import sin\n\ndef plant(): return 'seed'\n\nclass Bed: pass\n\nx = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "garden.py"


def test_by_file_and_by_module(module, monkeypatch):
    assert import_object(f"{module}:plant", "env")() == "seed"
    monkeypatch.syspath_prepend(str(module.parent))
    assert import_object("garden:plant", "env")() == "seed"


@pytest.mark.parametrize("target", ["garden", ":plant", "garden:"])
def test_half_a_target_is_refused(target):
    with pytest.raises(ConfigError, match='expected "module:Name"'):
        import_object(target, "env")


def test_a_wrong_name_lists_the_modules_own(module):
    with pytest.raises(ConfigError, match=r"has no 'plan'; did you mean 'plant'\? \(it has: Bed, plant\)"):
        import_object(f"{module}:plan", "env")


def test_what_does_not_fit_is_refused(module):
    with pytest.raises(ConfigError, match="has nothing fitting under the name 'x'"):
        import_object(f"{module}:x", "env")


def test_missing_modules_and_files_are_named(module):
    with pytest.raises(ConfigError, match="no module named 'no_such_garden'"):
        import_object("no_such_garden:plant", "env")
    with pytest.raises(ConfigError, match="there is no file"):
        import_object("no_such_garden.py:plant", "env")


@pytest.mark.parametrize("target", ["weeds:plant", "weeds.py:plant"])
def test_a_package_that_the_module_lacks_is_named_in_one_line(module, monkeypatch, target):
    place = module.parent / "weeds.py"
    place.write_text("import math\nimport no_such_package_at_all\n")
    monkeypatch.syspath_prepend(str(module.parent))
    monkeypatch.delitem(sys.modules, "weeds", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        import_object(target, "env")
    problem = f"env={target} cannot be imported: No module named 'no_such_package_at_all'"
    assert str(caught.value) == f"{problem} ({place}, line 2)"


def test_processes_of_ours_do_not_look_into_the_current_folder(tmp_path, monkeypatch):
    """It may be a folder that somebody else made: a ``json.py`` there must not be taken for Python's."""
    marker = hostile_folder(tmp_path / "downloaded")
    monkeypatch.chdir(tmp_path / "downloaded")
    outcome, _ = train_here(
        tmp_path, "env=toy_target", "stop.batches=1", "recording=all", "evaluation.final=true", "evaluation.episodes=1"
    )
    assert outcome.state == "finished"
    assert dict(map_unordered(abs, [-1, -2], 2)) == {-1: 1, -2: 2}
    assert not marker.exists()


def test_built_in_code_does_not_bring_the_current_folder_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_object("rollmill.envs.toy:Target", "env")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("target", ["stones:plant", "stones.py:plant"])
def test_a_module_that_fails_is_shown_from_its_own_line_on(module, monkeypatch, target):
    place = module.parent / "stones.py"
    place.write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(str(module.parent))
    with pytest.raises(ConfigError) as caught:
        import_object(target, "env")
    first, second, third, *_ = str(caught.value).splitlines()
    assert first == f"env={target} cannot be imported: ZeroDivisionError: division by zero"
    assert second == "Traceback (most recent call last):"
    assert third.strip() == f'File "{place}", line 2, in <module>'


def test_a_module_that_is_no_python(module):
    (module.parent / "mud.py").write_text("class A(:\n")
    with pytest.raises(ConfigError, match=r"cannot be imported: SyntaxError: invalid syntax \(mud.py, line 1\)"):
        import_object("mud.py:A", "env")


def test_what_a_notebook_defines_is_in_no_other_process():
    with pytest.raises(ConfigError, match=r"notebook .*train\(env=Mine\).* file \(env=path/to/file.py:Mine\)"):
        import_object("__main__:Mine", "env")


def test_whether_a_package_is_installed(monkeypatch):
    assert is_installed("json")
    assert not is_installed("no_such_package_at_all")
    monkeypatch.setitem(sys.modules, "json", None)
    assert not is_installed("json")
    monkeypatch.setitem(sys.modules, "made_by_hand", object())
    assert is_installed("made_by_hand")
