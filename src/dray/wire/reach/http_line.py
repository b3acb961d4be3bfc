"""HTTP to a hub over a line that is known to be its own. Blocking; the one way in which dray's own programs ask."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dray.wire.reach.dialling import Trust, Way, open_line, tell_broken

# How a connection breaks.
BROKEN = (OSError, http.client.HTTPException)


class HubConnection(http.client.HTTPConnection):
    """One connection. `trust` gives what TLS must prove; it is asked only where the connection leaves this machine."""

    def __init__(self, way: Way, token: str, timeout: float, trust: Trust, blocksize: int = 8192) -> None:
        parts = urlsplit(way.url)
        self.default_port = 443 if parts.scheme == "https" else 80
        super().__init__(parts.hostname or "", parts.port, timeout=timeout, blocksize=blocksize)
        self._way, self._token, self._trust = way, token, trust

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Ask with the token, and wait until an answer begins."""
        self.request(method, path, body, self.sign(headers))
        return self.getresponse()

    def sign(self, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """These headers and the token's."""
        return {"Authorization": f"Bearer {self._token}", **(headers or {})}

    def connect(self) -> None:
        """Dial: nothing has been sent when this returns, and whoever listens is the hub."""
        line = open_line(self._way, self.timeout, self._trust)
        self.sock = line.sock
        if line.context is not None:
            try:
                self.sock = line.context.wrap_socket(line.sock, server_hostname=self.host)
            except OSError as fault:
                line.sock.close()
                raise (tell_broken(fault) or fault) from None
            except BaseException:
                line.sock.close()
                raise
