"""Blocking work waits for a thread where none can be started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, logging, os, sys, threading
from pathlib import Path
from dray.agent.tasks.aside import Aside
from dray.agent.runners.blobs import Blobs
from dray.wire.local.blob_folder import BlobFolder

async def when_told(group, work):
    "Begin the work while no thread can be started, and let one be started once that was said."
    told = asyncio.Event()
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: told.set() or True)
    logging.getLogger("dray.agent").addHandler(handler)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "pids.max").write_text("1")
    task = asyncio.create_task(work)
    await told.wait()
    assert not task.done()
    (group / "pids.max").write_text("max")
    return task

async def first(group, folder):
    print(await (await when_told(group, Aside(2, "few").do(lambda: "done"))))

async def once(group, folder):
    "The thread that is there finds in its queue what could get no thread of its own."
    aside, gate, runs = Aside(2, "few"), threading.Event(), []
    before = asyncio.create_task(aside.do(gate.wait))
    await asyncio.sleep(0)
    task = await when_told(group, aside.do(runs.append, 1))
    gate.set()
    await asyncio.gather(before, task)
    await aside.do(lambda: None)
    print("done" if runs == [1] else runs)

async def upload(group, folder):
    "A value that is brought to a hub of the same home."
    (folder / "own").mkdir()
    BlobFolder(f"{folder}/near").offer(1 << 20, 0)
    (folder / "value").write_bytes(b"x")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    blobs = Blobs(folder / "own", str(folder / "near"), 1 << 20, lambda: None)
    with open(folder / "value", "rb") as file:
        await (await when_told(group, blobs.upload(file, digest, 1, keep=False)))
    print("done" if Path(await blobs.fetch(digest)).read_bytes() == b"x" else "something else")

asyncio.run(globals()[sys.argv[1]](*map(Path, sys.argv[2:])))
"""


@pytest.mark.parametrize("case", ["first", "once", "upload"])
def test_work_waits_until_a_thread_can_be_started(case: str, tmp_path: Path) -> None:
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"dray-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "pids.max").exists():
                ran = subprocess.run(
                    [sys.executable, "-c", SCRIPT, case, group, tmp_path],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
                assert "no thread can be started" in ran.stderr
                return
        finally:
            group.rmdir()
    pytest.skip("there is no cgroup for pids that may be written")
