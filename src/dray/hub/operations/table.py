"""All operations of the hub by their names: the one table that HTTP, the client channel and OpenAPI are made from."""

from __future__ import annotations

from dray.hub.operations.access import ACCESS
from dray.hub.operations.jobs import JOBS
from dray.hub.operations.operation import Operation
from dray.hub.operations.services import SERVICES
from dray.hub.operations.sessions import SESSIONS
from dray.hub.operations.site import SITE
from dray.hub.operations.templates import TEMPLATES
from dray.hub.operations.values import VALUES

OPERATIONS: dict[str, Operation] = {
    row.name: row for rows in (JOBS, SERVICES, SESSIONS, VALUES, SITE, TEMPLATES, ACCESS) for row in rows
}
