"""A channel that the hub closes for good: whatever waits ends with the error of the close, as does all that follows."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import dray
from dray.errors import DrayError, InvalidInput, Unauthenticated
from dray.testing import RunningHub, running_hub

DEADLINE_S = 60.0
LARGE = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def revoke(hub: RunningHub, client: dray.Hub) -> None:
    """The admin ends the token; the next thing that the client says is its last."""
    headers = {"Authorization": f"Bearer {hub.token}"}
    token_id = client.config.token.split("_")[1]
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    connection.request("DELETE", f"/api/v1/tokens/{token_id}", headers=headers)
    assert json.loads(connection.getresponse().read())["revoked"]
    connection.close()
    with pytest.raises(Unauthenticated):
        client.ping()


def talk_nonsense(hub: RunningHub, client: dray.Hub) -> None:
    """Ten bad messages in a row end a channel (4400)."""
    thread, inner = client._opened()
    socket = inner._channel._socket
    assert socket is not None  # it has answered before
    for _ in range(10):
        thread.loop.call_soon_threadsafe(socket.send, b"\xc1 no message")


def in_thread(work: Callable[..., Any], *given: Any) -> concurrent.futures.Future[Any]:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    ending = pool.submit(work, *given)
    pool.shutdown(wait=False)
    return ending


async def follow(client: dray.Hub, job_id: str) -> list[Any]:
    return [row async for row in client._opened()[1].follow(job_id)]


@pytest.mark.parametrize(("close", "kind"), [(revoke, Unauthenticated), (talk_nonsense, InvalidInput)])
def test_every_future_ends_with_the_error_of_the_close(
    hub: RunningHub, close: Callable[[RunningHub, dray.Hub], None], kind: type[DrayError]
) -> None:
    token = hub.make_token(f"user-{close.__name__}")
    with dray.connect(hub.url, token) as client:
        job = client.submit(["true"])
        call = client.submit(abs, -1)
        assert call.id  # recorded, and no worker will ever run it
        short = client.map(abs, range(4), window=2)
        lasting = client.map(abs, range(100), window=2, return_exceptions=True)
        lasting.await_recorded()
        thread, _ = client._opened()
        waiting = {
            "call": in_thread(call.result),
            "wait": in_thread(client.wait, job),
            "handle": in_thread(job.result),
            "map": in_thread(next, short),
            "follow": in_thread(thread.call, follow(client, job.id)),
        }
        # All of them have been heard by the hub before it closes.
        concurrent.futures.wait(waiting.values(), timeout=0.2)
        close(hub, client)
        for name, ending in waiting.items():
            assert isinstance(ending.exception(DEADLINE_S), kind), name
        assert [type(one) for one in in_thread(list, lasting).result(DEADLINE_S)] == [kind] * 100
        later = [client.submit(abs, -2), client.submit(len, os.urandom(LARGE))]
        for future in later:
            assert isinstance(future.exception(DEADLINE_S), kind), future
        late = client.map(abs, range(3))
        for ask in (late.await_recorded, late.__next__, client.ping, lambda: client.submit(["true"])):
            assert isinstance(in_thread(ask).exception(DEADLINE_S), kind), ask
