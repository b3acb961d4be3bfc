"""Keep-alive HTTP connections to a hub, as thin as asyncio allows: the hub is what is measured, not its client."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec


class HttpConnection:
    """One connection, one request at a time."""

    def __init__(self, url: str, token: str) -> None:
        self._parts = urlsplit(url)
        named = (
            ("Host", self._parts.netloc),
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
        )
        self._head = "".join(f"{name}: {value}\r\n" for name, value in named)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes, key: str = "") -> Any:
        """POST a document and read the answer; anything but success is an error."""
        return await self.ask("POST", path, body, key)

    async def ask(self, method: str, path: str, body: bytes = b"", key: str = "") -> Any:
        """The same by any method."""
        named = f"Idempotency-Key: {key}\r\n" if key else ""
        line = f"{method} /api/v1{path} HTTP/1.1\r\n{self._head}{named}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(line.encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(text.partition(":")[2]) for text in lines if text.startswith("content-length"))
        answer = await self._reader.readexactly(length)
        if lines[0].split()[1][0] != "2":
            raise RuntimeError(f"{method} {path} was answered {lines[0]}: {answer[:200]!r}")
        return msgspec.json.decode(answer)
