"""Real hubs with real agents and a real browser: one browser and one hub per module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests.browser import chromium  # noqa: E402 - only found after the line above
from tests.browser.visitor import Visitor  # noqa: E402 - as above
from tests.e2e.cluster import CALM, Cluster  # noqa: E402 - as above

BUILT = Path(_ROOT) / "src" / "dray" / "hub" / "pages" / "built" / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, as a person has one. Of a module: what drives it has an event loop of its own in this thread."""
    if not BUILT.exists():
        pytest.skip("the dashboard is not built here: ./dev web says why")
    try:
        found = chromium.find()
    except chromium.Missing as why:
        pytest.skip(f"no browser: {why}")
    with sync_playwright() as playwright:
        env: dict[str, str | float | bool] = {**os.environ, **found.env}
        yield playwright.chromium.launch(
            executable_path=found.program, args=list(chromium.FLAGS), env=env, timeout=60_000
        )


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A hub and one agent with two slots, shared by the tests of a module."""
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", slots=2)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors with a browser profile of their own; at the end none of them may have seen anything odd."""
    made: list[Visitor] = []

    def make(cluster: Cluster, **options: object) -> Visitor:
        made.append(Visitor(browser, cluster, **options))
        return made[-1]

    yield make
    odd = [line for visitor in made for line in visitor.odd]
    for visitor in made:
        visitor.close()
    assert not odd
