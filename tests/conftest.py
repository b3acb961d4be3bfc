"""What tests of every part share: hypothesis profiles, waiting for a condition, a short folder for unix sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from tests import compiled, sites, warm
from tests.leftovers import Leftovers
from tests.postgres import database, servers, shared_postgres
from tests.valkey import own_valkey, shared_valkey, valkey, valkeys

from dray.testing.hub_process import RunningHub

# Fixtures of every part that asks for a database, or for Redis.
__all__ = ["database", "own_valkey", "servers", "shared_postgres", "shared_valkey", "valkey", "valkeys"]
POLL_S = 0.01
# Only a failure waits this long; a machine under load may be ten times slower than this one.
LIMIT_S = 60.0

# No deadlines: how long one example takes says more about the machine's load than about the code.
# Few examples: each run of the suite draws others, the deep profile draws many.
hypothesis.settings.register_profile("dev", deadline=None, max_examples=60)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("deep", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)

# A hub of a test is forked from an interpreter that has loaded it.
RunningHub.popen = warm.Popen
warm.spare_the_disk()

# Tests of processes wait as long as they compute: with so many workers more than cores, no core does.
EXTRA_WORKERS = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "what hubs of end-to-end tests, contracts and calls keep their store in (default: their home)"
    parser.addoption("--site", choices=sites.KINDS, default=sites.HOME, help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--site") != sites.HOME:
        for item in items:
            if (mark := item.get_closest_marker("home_site")) is not None:
                item.add_marker(pytest.mark.skip(reason=f"about a store in the home: {mark.args[0]}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds = getattr(metafunc.module, "SITES", ())
    if kinds and metafunc.config.getoption("--site") == sites.HOME:
        metafunc.parametrize("site_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def site_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """What kind of site hubs are started on now."""
    sites.current = getattr(request, "param", "") or request.config.getoption("--site")
    yield sites.current
    sites.current = request.config.getoption("--site")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell has what it starts in the background (`./dev test &`) ignore Ctrl-C, and so would all that is started
        # from here: what a test interrupts would go on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "home_site(why): not run where hubs keep their store in a database")
    sites.current = config.getoption("--site")
    if getattr(config.option, "numprocesses", None):
        compiled.compile_ahead(
            config, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        )
    if not hasattr(config, "workerinput") and os.path.isdir("/proc/self"):
        config.pluginmanager.register(Leftovers(), "leftovers")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector need not look through it again and again, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    warm.stop()
    sites.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """How many workers `-n auto` means; None leaves it to the variable that says so."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + EXTRA_WORKERS


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """`wait_until(predicate, timeout_s=60)` polls until the predicate holds and returns what it returned."""

    def wait(
        predicate: Callable[[], object], timeout_s: float = LIMIT_S, what: str = "the condition"
    ) -> object:
        deadline = time.monotonic() + timeout_s
        while not (value := predicate()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not come true within {timeout_s:g} s")
            time.sleep(POLL_S)
        return value

    return wait


@pytest.fixture
def wait_until_async() -> Callable[..., Awaitable[object]]:
    """`await wait_until_async(predicate, timeout_s=60)`: as `wait_until`, while the event loop goes on."""

    async def wait(
        predicate: Callable[[], object], timeout_s: float = LIMIT_S, what: str = "the condition"
    ) -> object:
        deadline = time.monotonic() + timeout_s
        while not (value := predicate()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not come true within {timeout_s:g} s")
            await asyncio.sleep(POLL_S)
        return value

    return wait


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name: unix socket paths end at 107 bytes, 103 on macOS."""
    folder = Path(tempfile.mkdtemp(prefix="dr"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
