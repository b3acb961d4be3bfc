"""Commands of a site, run beside the hub: words and never a shell, within a limit of time, in a group of their own.

What a command says is bounded, and its environment is the hub's own without dray's secrets. The surprising rule: what
it says goes to files, and its end is looked for, since whatever it leaves running may hold its pipes open for as long
as a machine lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO

from dray.hub.launchers.base import SiteFault, Spoken

MOST_BYTES, MOST_WORDS = 1 << 20, 300
FIRST_LOOK_S, LONGEST_LOOK_S = 0.01, 0.25
_SECRET = ("DRAY_TOKEN", "DRAY_WORKER_TOKEN", "DRAY_STORE", "DRAY_REDIS", "DRAY_HOME")


async def run(argv: Sequence[str], within_s: float, script: str = "", env: Spoken | None = None) -> str:
    """What a command says on its standard output; a `SiteFault` with its own words where it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in _SECRET}
    with (
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as faults,
    ):
        asked.write(script.encode())
        asked.seek(0)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own waits for pipes that others hold open
                argv,
                stdin=asked,
                stdout=said,
                stderr=faults,
                env={**kept, **(env or {})},
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise SiteFault(f"{argv[0]} cannot be run: {why}") from None
        code = await _wait(process, argv[0], within_s)
        answer = _read(said)
        if code:
            words = " ".join((_read(faults) or answer).split())[-MOST_WORDS:]
            raise SiteFault(f"{argv[0]} ended with exit code {code}" + (f": {words}" if words else ""))
        return answer


async def _wait(process: subprocess.Popen[bytes], name: str, within_s: float) -> int:
    """The exit code of a command; one that takes too long, or is not wanted any more, is killed with its group."""
    pause_s = FIRST_LOOK_S
    try:
        async with asyncio.timeout(within_s):
            while (code := process.poll()) is None:
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_LOOK_S, pause_s * 1.5)
            return code
    except TimeoutError:
        raise SiteFault(f"{name} did not answer within {within_s:g} s, and was ended", unsure=True) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode("utf-8", "replace")
