"""A task's output, read over HTTP as it grows. Blocking: the async face runs it in a thread.

Output may be gigabytes and belongs in no message of the channel. A break in the middle is an error, never a quiet end.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from dray.client.reach.discovery import Target, trust
from dray.client.reach.refusals import read_error
from dray.errors import DrayError, HubUnavailable
from dray.wire.reach.http_line import HubConnection

CHUNK_BYTES = 1 << 16
SILENCE_S = 60.0


def read_output(target: Target, job_id: str, query: dict[str, Any], open_s: float) -> Iterator[bytes]:
    """Yield the output piece by piece. With `follow`, until the task has ended, however long it is silent."""
    follow = bool(query.get("follow"))
    connection = _connect(target, open_s)
    try:
        response = _request(connection, target, job_id, query)
        if connection.sock is not None:
            connection.sock.settimeout(None if follow else SILENCE_S)
        while piece := response.read1(CHUNK_BYTES):
            yield piece
    except (OSError, http.client.HTTPException) as fault:
        raise HubUnavailable(
            f"the output of {job_id} broke off: {fault}: read it again from the start"
        ) from None
    finally:
        connection.close()


def read_document(target: Target, path: str, open_s: float) -> dict[str, Any]:
    """One answer of the API, whole."""
    connection = _connect(target, open_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {target.token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise _read_refusal(response, target)
        document: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException) as fault:
        raise HubUnavailable(f"no hub answers at {target.url}: {fault}") from None
    finally:
        connection.close()
    return document


def _connect(target: Target, open_s: float) -> HubConnection:
    return HubConnection(target.way, open_s, lambda: trust(target))


def _request(
    connection: http.client.HTTPConnection, target: Target, job_id: str, query: dict[str, Any]
) -> http.client.HTTPResponse:
    wanted = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    path = f"/api/v1/jobs/{quote(job_id, safe='')}/logs?{urlencode(wanted)}"
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {target.token}"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as fault:
        raise HubUnavailable(f"no hub answers at {target.url}: {fault}") from None
    if response.status != 200:
        raise _read_refusal(response, target)
    return response


def _read_refusal(response: http.client.HTTPResponse, target: Target) -> DrayError:
    try:
        return read_error(json.loads(response.read())["error"])
    except (ValueError, KeyError, TypeError):
        return HubUnavailable(f"what answers at {target.url} is not a dray hub (status {response.status})")
