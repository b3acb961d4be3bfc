"""One Redis server: dialled, asked whether it is fit for a mirror, sent commands by the hundred, and left again.

Speaks through the driver's own connection, for its TLS, names and passwords; commands are packed and answers are read
by hand, since its pipelines cost several times as much. Every wait has an end: a server that is stopped, or at the far
side of a cut cable, is away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection as PlainConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from dray.errors import InvalidInput
from dray.hub.addresses import read_address
from dray.hub.mirror.groups import Value
from dray.hub.mirror.scripts import SCRIPTS

SCHEMES = ("redis", "rediss")
ANSWER_S = 5.0
CHUNK_BYTES = 1 << 20
Command = Sequence[Value]


class Away(Exception):
    """A server does not answer, or not as a server should."""


class Unfit(Exception):
    """A server that would lose what is written to it without a word."""


class Address:
    """Where Redis is. Its text is fit to be shown; only `options` know the password."""

    def __init__(self, text: str) -> None:
        try:
            found = read_address(text)
            self.options: dict[str, Any] = dict(parse_url(text))
        except ValueError as error:
            # The text itself may hold a password, and stays unsaid.
            raise InvalidInput(
                f"the address of Redis cannot be read ({error}): write redis://HOST:PORT/DB, or rediss:// for TLS"
            ) from None
        if found.scheme not in SCHEMES or not found.host:
            raise InvalidInput(
                "Redis is redis://HOST:PORT/DB, or rediss://… for TLS, with USER:PASSWORD@ before the host"
            )
        database = found.path.strip("/")
        if database and not database.isdigit():
            raise InvalidInput(
                f"the address of Redis ends with the number of a database, not with {database!r}"
            )
        self.host, self.port, self.shown = found.host, found.port or 6379, found.shown
        self.kind: type[Any] = self.options.pop("connection_class", PlainConnection)
        for name in ("host", "port"):
            self.options.pop(name, None)

    def __str__(self) -> str:
        return self.shown


class Connection:
    """One connection. Used by one task at a time."""

    def __init__(self, address: Address, host: str, port: int) -> None:
        self._place = f"{host}:{port}"
        limits = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
        quiet = {
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,
            "protocol": 2,
        }
        self._line = address.kind(host=host, port=port, **limits, **quiet, **address.options)

    async def open(self) -> None:
        """Dial, and teach it the scripts."""
        try:
            await self._line.connect()
        except (RedisError, OSError) as error:
            raise Away(f"{self._place}: {_tell(error)}") from error
        answers = await self.send([("SCRIPT", "LOAD", script.text) for script in SCRIPTS])
        for answer in answers:
            if isinstance(answer, Exception):
                raise Away(f"{self._place} takes no scripts: {answer}")

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and give their answers in order; an answer that is an error is given, not raised."""
        if not commands:
            return []
        try:
            packed: list[bytes] = []
            size = 0
            for command in commands:
                # Its stub says that a command is one word.
                packed.append(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]  # as above
                size += len(packed[-1])
                if size > CHUNK_BYTES:
                    await self._line.send_packed_command(packed, check_health=False)
                    packed, size = [], 0
            if packed:
                await self._line.send_packed_command(packed, check_health=False)
            return [await self._read() for _ in commands]
        except (RedisError, OSError) as error:
            raise Away(f"{self._place}: {_tell(error)}") from error

    async def ask(self, *command: Value) -> Any:
        """Send one command and give its answer."""
        (answer,) = await self.send([command])
        return answer

    async def _read(self) -> Any:
        try:
            return await self._line.read_response(disconnect_on_error=False)
        except ResponseError as error:
            return error

    async def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(RedisError, OSError):
            await self._line.disconnect(nowait=True)

    async def examine(self) -> str:
        """Raise `Unfit` where keys may be dropped in silence; gives what cannot be told, for people."""
        policy = ""
        asked = await self.ask("CONFIG", "GET", "maxmemory-policy")
        if isinstance(asked, list) and len(asked) == 2:
            policy = _text(asked[1])
        else:
            # Hosted servers keep CONFIG to themselves.
            told = await self.ask("INFO", "memory")
            if isinstance(told, str | bytes):
                lines = dict(line.partition(":")[::2] for line in _text(told).splitlines())
                policy = lines.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise Unfit(
                f"{self._place} has maxmemory-policy {policy}, which drops whole queues in silence when it is full: "
                "set noeviction or one of volatile-*"
            )
        return "" if policy else f"{self._place} does not tell its maxmemory-policy"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _tell(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__
