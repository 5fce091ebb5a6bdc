"""The user's code by name: found where a script would find it, and explained when it is not there."""

from __future__ import annotations

import sys

import pytest
from running import train_here

from rollmill.core.errors import ConfigError
from rollmill.core.imports import import_object
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


def test_a_broken_import_inside_the_module_is_not_hidden(module, monkeypatch):
    (module.parent / "weeds.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(str(module.parent))
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        import_object("weeds:plant", "env")


def test_processes_of_ours_do_not_look_into_the_current_folder(tmp_path, monkeypatch):
    """It may be a folder that somebody else made: a ``json.py`` there must not be taken for Python's."""
    marker = tmp_path / "marker"
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name in ("json", "pickle", "numpy"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__file__)\nraise ImportError\n")
    monkeypatch.chdir(folder)
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
