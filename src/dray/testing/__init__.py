"""For tests against dray: a real hub for the length of a test, and workers that do exactly what the test says.

Shipped with dray, so that what runs in your tests is what runs in production. Loads nothing before it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dray.testing.async_worker import AsyncMockWorker as AsyncMockWorker
    from dray.testing.builders import make_capability as make_capability
    from dray.testing.builders import make_slots as make_slots
    from dray.testing.builders import make_spec as make_spec
    from dray.testing.hub_process import RunningHub as RunningHub
    from dray.testing.hub_process import running_hub as running_hub
    from dray.testing.mock_worker import MockWorker as MockWorker
    from dray.testing.worker_script import Assignment as Assignment
    from dray.testing.worker_script import Message as Message

_HOMES = {
    "Assignment": "dray.testing.worker_script",
    "AsyncMockWorker": "dray.testing.async_worker",
    "Message": "dray.testing.worker_script",
    "MockWorker": "dray.testing.mock_worker",
    "RunningHub": "dray.testing.hub_process",
    "make_capability": "dray.testing.builders",
    "make_slots": "dray.testing.builders",
    "make_spec": "dray.testing.builders",
    "running_hub": "dray.testing.hub_process",
}
__all__ = [
    "Assignment",
    "AsyncMockWorker",
    "Message",
    "MockWorker",
    "RunningHub",
    "make_capability",
    "make_slots",
    "make_spec",
    "running_hub",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'dray.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
