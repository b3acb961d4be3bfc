"""dray: hauls machine-learning work to the machine that can carry it.

The facade. Importing it loads nothing else; each name is loaded when it is first used.
"""

from __future__ import annotations

# Type checkers take this name for true; importing it from `typing` would be most of the cost of `import dray`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dray import errors as errors
    from dray.client.faces.async_hub import AsyncHub as AsyncHub
    from dray.client.faces.async_hub import AsyncJob as AsyncJob
    from dray.client.faces.endpoint import Endpoint as Endpoint
    from dray.client.faces.endpoint import endpoint as endpoint
    from dray.client.faces.executor import Executor as Executor
    from dray.client.faces.hub import Hub as Hub
    from dray.client.faces.hub import connect as connect
    from dray.client.faces.job import Job as Job
    from dray.client.faces.task import task as task
    from dray.client.futures.futures import CallFuture as Future
    from dray.client.futures.gathering import as_completed as as_completed
    from dray.client.futures.gathering import gather as gather
    from dray.client.futures.status import Status as Status
    from dray.client.futures.task_session import session as session
    from dray.core.model.records.records import JobState as JobState
    from dray.errors import DrayError as DrayError
    from dray.errors import HubUnavailable as HubUnavailable
    from dray.functions.failures import CallFailed as CallFailed

__version__ = "0.2.0"

_HOMES = {
    "AsyncHub": "dray.client.faces.async_hub",
    "AsyncJob": "dray.client.faces.async_hub",
    "CallFailed": "dray.functions.failures",
    "DrayError": "dray.errors",
    "Endpoint": "dray.client.faces.endpoint",
    "Executor": "dray.client.faces.executor",
    "Future": "dray.client.futures.futures",
    "Hub": "dray.client.faces.hub",
    "HubUnavailable": "dray.errors",
    "Job": "dray.client.faces.job",
    "JobState": "dray.core.model.records.records",
    "Status": "dray.client.futures.status",
    "as_completed": "dray.client.futures.gathering",
    "connect": "dray.client.faces.hub",
    "endpoint": "dray.client.faces.endpoint",
    "gather": "dray.client.futures.gathering",
    # For `%load_ext dray`.
    "load_ipython_extension": "dray.notebook",
    "session": "dray.client.futures.task_session",
    "task": "dray.client.faces.task",
}
# What a name is called in its home, where that is another word.
_SPELLED = {"Future": "CallFuture"}
__all__ = [
    "AsyncHub",
    "AsyncJob",
    "CallFailed",
    "DrayError",
    "Endpoint",
    "Executor",
    "Future",
    "Hub",
    "HubUnavailable",
    "Job",
    "JobState",
    "Status",
    "__version__",
    "as_completed",
    "connect",
    "endpoint",
    "errors",
    "gather",
    "session",
    "task",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("dray.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dray' has no attribute {name!r}")
    value = getattr(import_module(home), _SPELLED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
