"""A loop on a thread of its own, asked while it ends."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from dray.hub.loop_thread import LoopThread


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_whoever_asks_while_it_ends_is_not_left_waiting() -> None:
    loop, late = LoopThread("test"), list[Future[Any]]()
    began: Future[None] = Future()

    async def ask_when_ended() -> None:
        try:
            began.set_result(None)
            await wait_for_ever()
        finally:
            late.append(loop.submit(wait_for_ever()))

    first = loop.submit(ask_when_ended())
    began.result(30)
    loop.close()
    for future in (first, *late):
        with pytest.raises(CancelledError):
            future.result(30)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call(wait_for_ever())


def test_a_connection_that_nobody_has_ends_with_the_loop() -> None:
    """Under warnings that are errors, as all tests are: the loop once waited for it for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = LoopThread("test")

        async def leave_one() -> None:
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, *server.getsockname())

        thread.call(leave_one())
        accepted, _ = server.accept()
        thread.close()
        with accepted:
            assert accepted.recv(1) == b"", "it was closed"
