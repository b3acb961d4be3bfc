"""dray: hauls machine-learning work to the machine that can carry it.

The facade. Importing it loads nothing else; each name is loaded when it is first used.
"""

from __future__ import annotations

# Type checkers take this name for true; importing it from `typing` would be most of the cost of `import dray`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dray import errors as errors
    from dray.client.async_client import AsyncHub as AsyncHub
    from dray.client.async_client import AsyncJob as AsyncJob
    from dray.client.blocking import Hub as Hub
    from dray.client.blocking import Job as Job
    from dray.client.blocking import connect as connect
    from dray.client.session import session as session
    from dray.client.status import Status as Status
    from dray.core.model.records import JobState as JobState
    from dray.errors import DrayError as DrayError
    from dray.errors import HubUnavailable as HubUnavailable

__version__ = "0.2.0"

_HOMES = {
    "AsyncHub": "dray.client.async_client",
    "AsyncJob": "dray.client.async_client",
    "DrayError": "dray.errors",
    "Hub": "dray.client.blocking",
    "HubUnavailable": "dray.errors",
    "Job": "dray.client.blocking",
    "JobState": "dray.core.model.records",
    "Status": "dray.client.status",
    "connect": "dray.client.blocking",
    "session": "dray.client.session",
}
__all__ = [
    "AsyncHub",
    "AsyncJob",
    "DrayError",
    "Hub",
    "HubUnavailable",
    "Job",
    "JobState",
    "Status",
    "__version__",
    "connect",
    "errors",
    "session",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("dray.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dray' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
