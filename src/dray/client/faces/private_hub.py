"""A hub and a worker of one's own, for a program that finds none: started for it, ended with it, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from dray.client.faces import guardian
from dray.client.reach.discovery import read_hub_file
from dray.config import PAIR_SERVICE_SLOTS, environment_of_pair
from dray.errors import HubUnavailable

READY_S = 30.0
END_S = 10.0
LOOK_EVERY_S = 0.004
logger = logging.getLogger("dray.client")
_lock = threading.Lock()
_started: list[PrivateHub] = []


class PrivateHub:
    """The processes of a private hub, and the home that they share."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="dray-private-"))
        env = {"DRAY_WORKER_SERVICE_SLOTS": str(PAIR_SERVICE_SLOTS), **environment_of_pair()}
        self._owner = os.getpid()
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(self.home), sys.executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**env, "DRAY_HOME": str(self.home)},
            start_new_session=True,
        )
        self._wait_until_ready()
        logger.info("no hub was found: a private one was started in %s", self.home)

    @property
    def alive(self) -> bool:
        """Whether it still runs, as far as this process can tell."""
        return self.home.exists() and (self._owner != os.getpid() or self._guardian.poll() is None)

    def stop(self) -> None:
        """End it, with everything that runs there."""
        if self._owner != os.getpid():
            return
        if self._guardian.stdin is not None:
            with contextlib.suppress(OSError):
                self._guardian.stdin.close()
        try:
            self._guardian.wait(END_S)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
            shutil.rmtree(self.home, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not read_hub_file(self.home):
            if self._guardian.poll() is not None or time.monotonic() > deadline:
                said = self._read_log()
                self.stop()
                raise HubUnavailable(f"no hub was found, and a private one did not start{said}")
            time.sleep(LOOK_EVERY_S)

    def _read_log(self) -> str:
        with contextlib.suppress(OSError):
            return ": " + (self.home / "log" / "hub.log").read_text(errors="replace")[-2000:].strip()
        return ""


def private_home(other: Path | None = None, url: str = "") -> Path:
    """The home of this program's private hub, which is started when first asked for.

    `other` is the home of a hub that was expected at `url` and does not answer: whoever reads the terminal is told so.
    """
    with _lock:
        if _started and not _started[-1].alive:
            _started.clear()
        if not _started:
            if other is not None:
                _tell_other(other, url)
            _started.append(PrivateHub())
            atexit.register(_started[-1].stop)
        return _started[-1].home


def _tell_other(home: Path, url: str) -> None:
    # Not by way of logging: a program that silences it would go on without its jobs and never know.
    if sys.stderr is not None:
        sys.stderr.write(
            f"dray: the hub of this machine does not answer at {url} (named by {home / 'hub.json'}). A private one is "
            "used instead: it ends with this program and knows none of the other's jobs and workers. To have that one "
            "back run `dray up`; to use another set DRAY_HUB.\n"
        )
        sys.stderr.flush()
