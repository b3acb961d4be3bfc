"""The hub that a program means when it names none: `dray.connect()`, once per process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.client.faces.hub import Hub

_lock = threading.Lock()
_known: dict[tuple[object, ...], Hub] = {}


def settle() -> None:
    """Let the arrays end that were opened through the hub of this process; it can be used on."""
    with _lock:
        found = list(_known.items())
    for key, hub in found:
        if key[0] == os.getpid():
            hub.settle()


def default_hub() -> Hub:
    """The hub of this process. A forked child has its own, and so has a call that another hub's runner makes."""
    from dray.client.faces.hub import dial_hub

    # A task's token is good for its own job alone.
    named = ("DRAY_HUB", "DRAY_HOME", "DRAY_TOKEN")
    key = (os.getpid(), *(os.environ.get(name, "") for name in named))
    with _lock:
        found = _known.get(key)
        if found is None or found.closed:
            _known.clear()
            found = _known[key] = dial_hub()
        return found
