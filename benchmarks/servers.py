"""Servers that hubs lean on, for the length of a block: PostgreSQL with real syncs, and Valkey."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.postgres import Server, Servers
from tests.valkey import Valkey, Valkeys


@contextlib.contextmanager
def running_postgres() -> Iterator[Server]:
    """A server whose commits are on the disk when they are answered."""
    with tempfile.TemporaryDirectory(prefix="drayb-", ignore_cleanup_errors=True) as folder:
        server = Servers(Path(folder)).make("fsync=on", "full_page_writes=on", "shared_buffers=128MB")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_valkey() -> Iterator[Valkey]:
    """One server that keeps nothing on disk."""
    with tempfile.TemporaryDirectory(prefix="drayb-", ignore_cleanup_errors=True) as folder:
        maker = Valkeys(Path(folder))
        try:
            yield maker.make()
        finally:
            maker.stop()
