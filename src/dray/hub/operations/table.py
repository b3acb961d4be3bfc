"""All operations of the hub by their names: the one table that HTTP, the client channel and OpenAPI are made from."""

from __future__ import annotations

from dray.hub.operations.access import ACCESS
from dray.hub.operations.jobs import JOBS
from dray.hub.operations.operation import Operation
from dray.hub.operations.services import SERVICES
from dray.hub.operations.sessions import LEASES, SESSIONS
from dray.hub.operations.site import LAUNCHES, MOVES, SITE, TEMPLATES
from dray.hub.operations.values import VALUES
from dray.hub.operations.views import VIEWS
from dray.hub.operations.workloads import WORKLOADS

OPERATIONS: dict[str, Operation] = {
    row.name: row
    for rows in (
        JOBS,
        SERVICES,
        WORKLOADS,
        SESSIONS,
        LEASES,
        VALUES,
        SITE,
        LAUNCHES,
        MOVES,
        VIEWS,
        TEMPLATES,
        ACCESS,
    )
    for row in rows
}
