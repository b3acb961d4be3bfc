"""Which service a request is for, by its path (`/proxy/NAME/…`) or by a host of its own (`NAME.DOMAIN`), and what is
asked of it.

Pure. A path that could be read in two ways is refused, not mended: whatever the service makes of it, the hub must
have made the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from dray.core.model.ids import is_id, is_name
from dray.errors import InvalidInput, NotFound
from dray.hub.access.certificates import is_loopback

ROOT = b"/proxy/"
_HOST = re.compile(rb"([A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_BAD = re.compile(rb"[\x00-\x1f\x7f\\]")


class Asked(NamedTuple):
    """A request for a service. `prefix`: under which path it is here, empty where it has a host of its own."""

    name: str
    path: bytes
    prefix: bytes

    @property
    def own_origin(self) -> bool:
        return not self.prefix


def choose_domain(told: str, host: str) -> str:
    """Where hosts of services end: as told; on a hub of one machine where browsers find them by themselves."""
    return told.lower().strip(".") or ("localhost" if is_loopback(host) else "")


def read_host(host: bytes, domain: str) -> str:
    """The service that a host names, where hosts of services end in `domain`; empty where it names none."""
    found = _HOST.fullmatch(host)
    if found is None or not domain:
        return ""
    name, dot, rest = found[1].decode().lower().rstrip(".").partition(".")
    return name if dot and rest == domain and is_id(name) else ""


def read_asked(host: bytes, raw_path: bytes, domain: str) -> Asked | None:
    """What is asked of which service; None where the hub itself is asked."""
    if name := read_host(host, domain):
        return Asked(name, _check(raw_path), b"")
    if not raw_path.startswith(ROOT):
        return None
    text, slash, path = raw_path[len(ROOT) :].partition(b"/")
    name = unquote_to_bytes(text).decode("utf-8", "replace")
    if not is_name(name):
        raise NotFound(f"{name[:64]!r} is no name of a service: write /proxy/NAME/")
    return Asked(name, _check(slash + path), ROOT + text)


def _check(path: bytes) -> bytes:
    """Refuse what leads out of the service's own paths by the reading of anybody on the way."""
    plain = unquote_to_bytes(path)
    if _BAD.search(plain) or any(part in (b".", b"..") for part in plain.split(b"/")):
        raise InvalidInput(
            "this path has `..`, `.`, a backslash or a control character in it: write it out plainly"
        )
    return path
