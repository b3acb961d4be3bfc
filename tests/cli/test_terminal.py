"""What is typed while this terminal is lent: all of it goes there but the escape, wherever pieces of it are cut."""

from __future__ import annotations

import pytest

from dray.cli.follow.terminal import Escapes


@pytest.mark.parametrize(
    ("typed", "sent", "left"),
    [
        (b"~.", b"", True),
        (b"ls\r~.more", b"ls\r", True),
        (b"a~.b", b"a~.b", False),
        (b"\r~~.", b"\r~.", False),
        (b"~x~.", b"~x~.", False),
        (b"\n~\r~.", b"\n~\r", True),
        (b"\x03\r~", b"\x03\r", False),
    ],
)
def test_only_the_escape_at_the_start_of_a_line_leaves(typed: bytes, sent: bytes, left: bool) -> None:
    assert Escapes().read(typed) == (sent, left)
    one_by_one = Escapes()
    seen, found = b"", False
    for key in typed:
        data, found = one_by_one.read(bytes([key]))
        seen += data
        if found:
            break
    assert (seen, found) == (sent, left)
