"""The map of formats: every entry resolves and has what it promises."""

from __future__ import annotations

import dataclasses

import pytest

from rollmill.core.errors import ConfigError
from rollmill.store.convert.formats import EXPORTS, IMPORTS, exporter, importer


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_resolves(name: str) -> None:
    module = exporter(name)
    assert dataclasses.is_dataclass(module.Options())
    assert callable(module.export_episodes)


@pytest.mark.parametrize("name", IMPORTS)
def test_every_import_resolves(name: str) -> None:
    module = importer(name)
    assert dataclasses.is_dataclass(module.ImportOptions())
    assert callable(module.import_episodes)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no format 'parqet'; did you mean 'parquet'\?"):
        exporter("parqet")
    with pytest.raises(ConfigError, match="known: minari, npz, tfrecord, pickle"):
        importer("mp4")
