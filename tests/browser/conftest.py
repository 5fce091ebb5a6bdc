from collections.abc import Iterator
from typing import Any

import pytest
from browsing import FLAGS, find_chromium
from running import LIMIT_SECONDS


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=1000 * LIMIT_SECONDS)
        yield started
        started.close()
