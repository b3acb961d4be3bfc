"""The hub's certificate over time: a warning a month ahead, and new files taken up while the hub runs.

Owns what was last seen of the files; the server's context is handed in. Nothing here renews a certificate: whoever gave
it does, and one of the hub's own making is pinned by its very bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dray.errors import InvalidConfig
from dray.hub.access.certificates import TlsFiles, fingerprint, seconds_left, warn_of_end

LOOK_S = 60.0
WARN_EVERY_S = 86400.0
_log = logging.getLogger("dray.hub.certificate")
Marks = tuple[tuple[int, int], ...]


class CertificateWatch:
    """Knows when the certificate ends. `reload` makes the server take the files up, and raises where it cannot."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.reload: Callable[[], None] = lambda: None
        self._marks = self._look()
        self._warned_s = -WARN_EVERY_S
        self.left_s = 0.0
        self.complaint = self.fingerprint = ""
        self._judge()

    def _look(self) -> Marks:
        return tuple(
            (status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in self._files[:2])
        )

    def _judge(self) -> None:
        try:
            self.fingerprint = fingerprint(self._files.cert)
            self.left_s = seconds_left(self._files.cert)
            self.complaint = warn_of_end(self._files, self.left_s)
        except InvalidConfig as fault:
            self.complaint = fault.message
        if self.complaint and time.monotonic() - self._warned_s >= WARN_EVERY_S:
            self._warned_s = time.monotonic()
            _log.warning("%s", self.complaint)

    def tend(self) -> bool:
        """Look at the files; gives whether new ones were taken up. What cannot be used leaves the old ones in force."""
        taken = False
        try:
            marks = self._look()
            if marks != self._marks:
                self.reload()
                self._marks, taken = marks, True
                _log.info("a new certificate was taken up from %s", self._files.cert)
        except OSError as fault:
            _log.warning("the certificate in %s cannot be taken up yet: %s", self._files.cert, fault)
        self._judge()
        return taken

    def check(self, state: object) -> dict[str, Any]:
        """What the doctor shows of it."""
        return {"name": "certificate", "ok": not self.complaint, "detail": self.complaint}

    async def run(self, taken_up: Callable[[], Awaitable[None]]) -> None:
        """Look every minute until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.tend():
                await taken_up()
