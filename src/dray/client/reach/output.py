"""A task's output, read over HTTP as it grows. Blocking: the async face runs it in a thread.

Output may be gigabytes and belongs in no message of the channel. A break in the middle is an error, never a quiet end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode

from dray.client.reach.discovery import Target
from dray.client.reach.http import connect, tell_refusal
from dray.errors import HubUnavailable
from dray.wire.reach.http_line import BROKEN, HubConnection

CHUNK_BYTES = 1 << 16
SILENCE_S = 60.0


def read_output(target: Target, job_id: str, query: dict[str, Any], open_s: float) -> Iterator[bytes]:
    """Yield the output piece by piece. With `follow`, until the task has ended, however long it is silent."""
    follow = bool(query.get("follow"))
    wanted = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    connection = connect(target, open_s)
    try:
        response = _ask(connection, target, f"/api/v1/jobs/{quote(job_id, safe='')}/logs?{urlencode(wanted)}")
        if connection.sock is not None:
            connection.sock.settimeout(None if follow else SILENCE_S)
        while piece := response.read1(CHUNK_BYTES):
            yield piece
    except BROKEN as fault:
        raise HubUnavailable(
            f"the output of {job_id} broke off: {fault}: read it again from the start"
        ) from None
    finally:
        connection.close()


def ask_document(
    target: Target, open_s: float, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One answer of the API, whole."""
    connection = connect(target, open_s)
    try:
        document: dict[str, Any] = json.loads(_ask(connection, target, f"/api/v1{path}", method, body).read())
    except BROKEN as fault:
        raise HubUnavailable(f"no hub answers at {target.url}: {fault}") from None
    finally:
        connection.close()
    return document


def _ask(
    connection: HubConnection,
    target: Target,
    path: str,
    method: str = "GET",
    body: dict[str, Any] | None = None,
) -> HTTPResponse:
    sent = {} if body is None else {"Content-Type": "application/json"}
    try:
        response = connection.ask(method, path, None if body is None else json.dumps(body), sent)
    except BROKEN as fault:
        raise HubUnavailable(f"no hub answers at {target.url}: {fault}") from None
    if response.status not in (200, 201):
        raise tell_refusal(target, response.status, response.read())
    return response
