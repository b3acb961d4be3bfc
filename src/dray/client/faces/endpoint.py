"""Where a service is, for a program: through the hub, with the token that lets in.

A task whose job uses the service finds it in its environment and asks nobody; any other program asks its hub. Knows
nothing of replicas: the hub chooses one for each request, so that an endpoint stays good for as long as its token.
"""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dray.core.model.specs.dependency import service_variable

if TYPE_CHECKING:
    import ssl

    from dray.client.reach.discovery import Target


@dataclass(frozen=True)
class Endpoint:
    """One service. `url` has no slash at its end; send `headers` along with each request."""

    name: str
    url: str
    token: str = field(repr=False)
    fingerprint: str = ""
    cafile: Path | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def headers(self) -> dict[str, str]:
        """What lets a request in."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def context(self) -> ssl.SSLContext | None:
        """What TLS has to prove of the hub, for clients of others; None where the hub speaks plain HTTP."""
        if not self.url.startswith("https:"):
            return None
        from dray.wire.reach.pinned_tls import make_context

        return make_context(self.url, self.fingerprint, self.cafile)

    def open(self, path: str = "/", data: bytes | None = None, timeout: float = 60.0, **headers: str) -> Any:
        """One request, as `urllib.request.urlopen` makes it: a POST where there is `data`.

        Underscores of headers become hyphens.
        """
        sent = {name.replace("_", "-"): value for name, value in headers.items()} | self.headers
        request = urllib.request.Request(f"{self.url}/{path.lstrip('/')}", data, sent)  # noqa: S310 - the hub's own
        return urllib.request.urlopen(request, timeout=timeout, context=self.context)  # noqa: S310 - as above


def endpoint(name: str) -> Endpoint:
    """Where a service is: as the job of this task uses it, else by the hub of this program.

    Raises `NotFound` where there is no such service, or it is not shared with you.
    """
    url, token = os.environ.get(service_variable(name), ""), os.environ.get("DRAY_SERVICE_TOKEN", "")
    if url and token:
        cafile = os.environ.get("DRAY_SERVICE_CAFILE")
        pinned = os.environ.get("DRAY_SERVICE_FINGERPRINT", "")
        return Endpoint(name, url, token, pinned, Path(cafile) if cafile else None)
    from dray.client.faces.default_hub import default_hub

    return default_hub().endpoint(name)


def reach_through(target: Target, name: str) -> Endpoint:
    """A service as a hub leads to it."""
    url = f"{target.url.rstrip('/')}/proxy/{quote(name, safe='@')}"
    return Endpoint(name, url, target.token, target.fingerprint, target.cafile)
