"""Blocking work waits for a thread where none can be started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, logging, os, sys
from pathlib import Path
from dray.agent.aside import do_aside

async def main(group):
    told = asyncio.Event()
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: told.set() or True)
    logging.getLogger("dray.agent").addHandler(handler)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "pids.max").write_text("1")
    work = asyncio.create_task(do_aside(lambda: "done"))
    await told.wait()
    assert not work.done()
    (group / "pids.max").write_text("max")
    print(await work)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_work_waits_until_a_thread_can_be_started() -> None:
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"dray-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "pids.max").exists():
                ran = subprocess.run(
                    [sys.executable, "-c", SCRIPT, group], capture_output=True, text=True, check=False
                )
                assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
                assert "no thread can be started" in ran.stderr
                return
        finally:
            group.rmdir()
    pytest.skip("there is no cgroup for pids that may be written")
