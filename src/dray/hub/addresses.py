"""Addresses of servers that a hub uses, which may hold a password: read, and made fit to be shown."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit


class ServerAddress(NamedTuple):
    """The parts of an address; `shown` is the text without any password."""

    scheme: str
    host: str
    port: int | None
    path: str
    shown: str
    has_password: bool


def read_address(text: str) -> ServerAddress:
    """Take an address apart; raises `ValueError`, which holds no part of it that may be secret."""
    parts = urlsplit(text)
    port, asked = parts.port, dict(parse_qsl(parts.query))
    secret = {name for name in asked if "password" in name}
    host = parts.hostname or ""
    user = f"{parts.username}@" if parts.username else ""
    place = f"[{host}]" if ":" in host else host
    query = urlencode({name: value for name, value in asked.items() if name not in secret}, safe="/")
    shown = f"{parts.scheme}://{user}{place}{f':{port}' if port else ''}{parts.path}{f'?{query}' if query else ''}"
    return ServerAddress(parts.scheme, host, port, parts.path, shown, bool(parts.password or secret))
