"""HTTP as a stranger would speak it to a hub of a test: one connection per request, nothing tried again."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from dray.testing.hub_process import RunningHub


def ask(
    hub: RunningHub,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    token: str = "",
) -> tuple[int, Any]:
    """Ask once, with the admin's token or another; 0 where nobody answers. Text that is no JSON comes as it is."""
    sent = {
        "Authorization": f"Bearer {token or hub.token}",
        "Content-Type": "application/json",
        **(headers or {}),
    }
    data = json.dumps(body).encode() if body is not None else None
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
    try:
        connection.request(method, path if path == "/metrics" else f"/api/v1{path}", data, sent)
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return answer.status, json.loads(raw)
    except ValueError:
        return answer.status, raw.decode()


def look(url: str, path: str) -> Any:
    """Ask at an address as a stranger, who has no token."""
    with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"))) as line:
        line.request("GET", path)
        return json.loads(line.getresponse().read())


def wait_until(what: Callable[[], Any], within_s: float = 60.0) -> Any:
    """Wait for a condition, with a deadline; gives what it came to."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.02)
    return found
