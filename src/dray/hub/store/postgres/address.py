"""Where a database is: `postgres://USER@HOST:PORT/NAME`, with or without a password, and how it may be shown.

Nothing but `Address.url` holds the password, and nothing prints that: logs, errors and lists show `Address.shown`.
"""

from __future__ import annotations

from dray.errors import InvalidInput
from dray.hub.addresses import read_address

SCHEMES = ("postgres", "postgresql")


class Address:
    """One database. Its text is fit to be shown."""

    __slots__ = ("has_password", "shown", "url")

    def __init__(self, text: str) -> None:
        try:
            found = read_address(text)
        except ValueError as error:
            # The text itself may hold a password, and stays unsaid.
            raise InvalidInput(
                f"the address of the store cannot be read ({error}): write postgres://USER@HOST:PORT/NAME"
            ) from None
        if found.scheme not in SCHEMES:
            raise InvalidInput(
                f"the store is {found.scheme or 'something'}://…: a hub keeps its store in its home (leave the setting "
                f"out) or in a database: postgres://USER@HOST:PORT/NAME"
            )
        self.url, self.has_password = text, found.has_password
        self.shown = f"postgres{found.shown.removeprefix(found.scheme)}"

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def is_address(text: str) -> bool:
    """Whether a text names a database rather than a file."""
    return text.partition("://")[0] in SCHEMES
