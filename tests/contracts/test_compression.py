"""Compression is off: a small frame must not be able to unfold into a large one."""

from __future__ import annotations

from typing import Any

import pytest
from websockets import Subprotocol
from websockets.sync.client import connect


@pytest.mark.parametrize("path", ["/ws", "/ws/client"])
def test_a_peer_that_offers_compression_gets_none(hub: Any, path: str) -> None:
    token = (hub.home / "token").read_text().strip()
    url = hub.ws.rsplit("/ws", 1)[0] + path
    headers = {"Authorization": f"Bearer {token}"}
    protocols = [Subprotocol("dray.client.v1.msgpack")] if path.endswith("client") else None
    with connect(
        url, additional_headers=headers, subprotocols=protocols, compression="deflate", proxy=None
    ) as socket:
        assert socket.request is not None
        assert socket.response is not None
        assert "permessage-deflate" in socket.request.headers["Sec-WebSocket-Extensions"]
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
