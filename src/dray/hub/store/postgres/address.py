"""Where a database is: `postgres://USER@HOST:PORT/NAME`, with or without a password, and how it may be shown.

Nothing but `Address.url` holds the password, and nothing prints that: logs, errors and lists show `Address.shown`.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from dray.errors import InvalidInput

SCHEMES = ("postgres", "postgresql")


class Address:
    """One database. Its text is fit to be shown."""

    __slots__ = ("has_password", "shown", "url")

    def __init__(self, text: str) -> None:
        try:
            parts = urlsplit(text)
            port, asked = parts.port, dict(parse_qsl(parts.query))
        except ValueError as error:
            # The text itself may hold a password, and stays unsaid.
            raise InvalidInput(
                f"the address of the store cannot be read ({error}): write postgres://USER@HOST:PORT/NAME"
            ) from None
        if parts.scheme not in SCHEMES:
            raise InvalidInput(
                f"the store is {parts.scheme or 'something'}://…: a hub keeps its store in its home (leave the setting "
                f"out) or in a database: postgres://USER@HOST:PORT/NAME"
            )
        self.url = text
        self.has_password = bool(parts.password or asked.get("password"))
        user = f"{parts.username}@" if parts.username else ""
        place = (f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname) or ""
        shown = {name: value for name, value in asked.items() if name != "password"}
        port_words = f":{port}" if port else ""
        query = f"?{urlencode(shown, safe='/')}" if shown else ""
        self.shown = f"postgres://{user}{place}{port_words}{parts.path}{query}"

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def is_address(text: str) -> bool:
    """Whether a text names a database rather than a file."""
    return text.partition("://")[0] in SCHEMES
