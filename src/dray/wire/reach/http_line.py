"""HTTP to a hub over a line that is known to be its own. Blocking; the one way in which dray's own programs ask."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from dray.wire.reach.dialling import Trust, Way, open_line, tell_broken


class HubConnection(http.client.HTTPConnection):
    """One connection. `trust` gives what TLS must prove; it is asked only where the connection leaves this machine."""

    def __init__(self, way: Way, timeout: float, trust: Trust, blocksize: int = 8192) -> None:
        parts = urlsplit(way.url)
        self.default_port = 443 if parts.scheme == "https" else 80
        super().__init__(parts.hostname or "", parts.port, timeout=timeout, blocksize=blocksize)
        self._way, self._trust = way, trust

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
