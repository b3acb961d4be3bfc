"""The hub that a program means when it names none: `dray.connect()`, once per process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.client.blocking import Hub

_lock = threading.Lock()
_known: dict[tuple[int, str, str], Hub] = {}


def default_hub() -> Hub:
    """The hub of this process. A forked child has its own, and so has a call that another hub's runner makes."""
    from dray.client.blocking import connect

    key = (os.getpid(), os.environ.get("DRAY_HUB", ""), os.environ.get("DRAY_HOME", ""))
    with _lock:
        found = _known.get(key)
        if found is None or found.closed:
            _known.clear()
            found = _known[key] = connect()
        return found
