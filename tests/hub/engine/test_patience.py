"""Heartbeats of many workers share turns: soon after a turn they wait a little, and go with whatever comes first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dray.config import load_hub
from dray.hub.app import start_hub, stop_hub
from dray.hub.assembly import Hub
from dray.hub.engine.engine import Engine
from dray.testing.async_worker import AsyncMockWorker

LIMIT_S = 60.0


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = await start_hub(load_hub(tmp_path, {"port": 0}))
    engine = asyncio.create_task(made.engine.run())
    try:
        yield made
    finally:
        await stop_hub(made)
        await engine
        await made.outputs.close()
        await made.writer.close()
        made.store.close(clean=True)


async def test_heartbeats_go_with_the_next_turn(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.hub.engine.engine.PATIENCE_S", 3600.0)
    monkeypatch.setattr("dray.hub.engine.engine.QUIET_S", 0.0)
    token = (hub.config.home / "token").read_text().strip()
    async with (
        AsyncMockWorker(hub.url, token, "a", msgpack=True) as first,
        AsyncMockWorker(hub.url, token, "b", msgpack=True) as second,
    ):
        for worker in (first, second):
            await worker.register(LIMIT_S)
        await hub.engine.settle()
        for worker in (first, second):
            await worker.heartbeat()
        async with asyncio.timeout(LIMIT_S):
            while len(hub.engine._inbox) < 2:  # noqa: ASYNC110 - nothing tells that a message waits
                await asyncio.sleep(0.005)
        monkeypatch.setattr("dray.hub.engine.engine.PATIENCE_S", 0.01)
        await hub.engine.ask(lambda state: None)
        for worker in (first, second):
            assert (await worker.recv("ack", LIMIT_S)).payload["re"] == "heartbeat"
        await first.heartbeat()
        assert (await first.recv("ack", LIMIT_S)).payload["re"] == "heartbeat", (
            "by itself where nothing comes"
        )


async def test_the_bell_rings_again_after_it_rang_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody heard the first one then, and what came meanwhile would wait for whatever comes next."""
    monkeypatch.setattr("dray.hub.engine.engine.PATIENCE_S", 0.02)
    monkeypatch.setattr("dray.hub.engine.engine.QUIET_S", 0.0)
    engine = object.__new__(Engine)
    engine._wake, engine._soon, engine._worked_s = asyncio.Event(), None, 0.0
    for _ in range(2):
        engine._turned_s = time.perf_counter()
        engine._wake.clear()
        engine._wake_soon()
        async with asyncio.timeout(LIMIT_S):
            await engine._wake.wait()
