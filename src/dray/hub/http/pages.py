"""Pages of the dashboard over HTTP: anybody may load them who calls the hub by its name."""

from __future__ import annotations

from dray.errors import DrayError
from dray.hub.access.entrance import Hosts, Receive, Scope, Send, has_body, read_headers
from dray.hub.http.replies import send_error
from dray.hub.http.routes import MethodNotAllowed
from dray.hub.pages.files import Page, elsewhere, show


async def send_page(hosts: Hosts, scope: Scope, receive: Receive, send: Send, leader: str = "") -> None:
    """Answer a request for a page or a file of it; where another hub leads, by the way there."""
    headers: dict[bytes, bytes] = {}
    try:
        headers = read_headers(scope["headers"])
        hosts.check_source(scope, headers)
        page = _find(scope, headers, leader)
    except DrayError as error:
        await send_error(send, receive, headers, error, body_read=not has_body(headers))
        return
    await send({"type": "http.response.start", "status": page.status, "headers": page.headers})
    await send({"type": "http.response.body", "body": page.body})


def _find(scope: Scope, headers: dict[bytes, bytes], leader: str) -> Page:
    method, path = scope["method"], scope["raw_path"]
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed("pages are only read: GET or HEAD", ("GET", "HEAD"))
    return elsewhere(leader, path) if leader else show(method, path, headers)
