"""What goes by itself after a while: finished jobs, log rows, keys, audit records, output files, blobs, memory.

By age and by size, in small steps between turns, never live work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.config import HubConfig
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.errors import EpochLost, StoreGone
from dray.hub.calls.blobs import Blobs
from dray.hub.decisions.policy import BROUGHT_FILE, NONE_BROUGHT, PolicyFile
from dray.hub.engine.engine import Engine
from dray.hub.engine.fault_reports import Reports
from dray.hub.engine.garbage import Collector
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord, Retention, Store
from dray.hub.store.writer import StoreWriter
from dray.hub.workers.outputs import Outputs

EVERY_S = 60.0
WATCH_S = 1.0
STEPS, PAUSE_S = 100, 0.1
logger = logging.getLogger("dray.hub.housekeeping")


async def keep_house(
    config: HubConfig, engine: Engine, writer: StoreWriter, outputs: Outputs, blobs: Blobs
) -> None:
    """Sweep every minute until cancelled."""
    collector = Collector()
    strays = True
    while True:
        await asyncio.sleep(EVERY_S)
        collector.tend()
        try:
            await sweep(config, engine, writer, outputs)
            if strays:
                await blobs.list_strays()
            strays = False
            await blobs.sweep(config.blob_idle_s)
        except EpochLost:
            engine.post(note_lost_epoch)
        except Exception:
            logger.exception("a sweep failed; the next one tries again")


def bring_policy(
    engine: Engine,
    home: Path,
    change: Callable[[State, Clock], Decision] | None,
    file: PolicyFile | None,
) -> None:
    """Let the policy file of a home have its effect, and note there which one it was, once that is committed."""

    def note(done: asyncio.Future[Any] | None = None) -> None:
        if done is None or not (done.cancelled() or done.exception()):
            try:
                (home / BROUGHT_FILE).write_text(file.digest if file is not None else NONE_BROUGHT)
            except OSError as fault:
                logger.warning("%s cannot be written: %s", home / BROUGHT_FILE, fault.strerror)

    if change is None:
        note()
    else:
        engine.change(change).add_done_callback(note)


def tell_set_aside(store: Store, reports: Reports) -> None:
    """File what the store could not read or write."""
    while store.set_aside:
        reports.file("stored value", store.set_aside.pop())


async def watch_store(engine: Engine, store: Store, reports: Reports) -> None:
    """Notice within a second, also while nobody asks anything, that the store was taken away or over."""
    while True:
        await asyncio.sleep(WATCH_S)
        tell_set_aside(store, reports)
        try:
            store.verify()
        except (StoreGone, EpochLost) as gone:
            engine.fail(gone)
            return


def note_lost_epoch(state: State, clock: Clock) -> Decision:
    """Ask for a commit, which ends this hub: one with nothing to write would keep its workers from the new one."""
    return Decision(audit=(AuditRecord(clock.at_ms, "", "", "epoch_lost", "", ""),))


async def sweep(config: HubConfig, engine: Engine, writer: StoreWriter, outputs: Outputs) -> int:
    """Let go of what is past its time; gives the number of jobs that went."""
    at_ms = engine.clock_ms()
    retention = Retention(
        finished_before_ms=at_ms - round(config.finished_s * 1000),
        finished_max=config.finished_max,
        log_before_ms=at_ms - round(config.log_s * 1000),
        keys_before_ms=at_ms - round(config.keys_s * 1000),
        audit_before_ms=at_ms - round(config.audit_s * 1000),
        samples_before_ms=at_ms - round(config.samples_s * 1000),
    )
    gone: list[str] = []
    for _ in range(STEPS):
        swept, more = await writer.run(lambda store: (store.sweep(retention), store.sweep_pending))
        gone += swept
        if swept:
            await outputs.drop(swept)
        if not more:
            break
        # Commits go first: a large job goes in many small steps.
        await asyncio.sleep(PAUSE_S)
    await outputs.trim(config.output_bytes, frozenset(engine.state.jobs))
    return len(gone)
