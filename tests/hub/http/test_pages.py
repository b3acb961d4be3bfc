"""Pages of the dashboard where no hub is there to answer for itself, and what is no page."""

from __future__ import annotations

from typing import Any

import pytest

from dray.hub.access.entrance import Hosts
from dray.hub.http.front import Front
from dray.hub.pages import files


async def ask(front: Front, path: str, method: str = "GET", host: str = "127.0.0.1:7373") -> dict[str, Any]:
    headers = [(b"host", host.encode()), (b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "scheme": "http"}
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    await front({**scope, "headers": headers, "server": ("127.0.0.1", 7373)}, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return {"status": sent[0]["status"], **found, "body": b"".join(one.get("body", b"") for one in sent[1:])}


async def test_pages_come_while_the_hub_reloads_and_lead_to_the_one_that_leads() -> None:
    front = Front()
    front.hosts = Hosts(())
    shown = await ask(front, "/ui/jobs/x")
    assert shown["status"] in (200, 503)  # without its files it says how to get them
    assert "frame-ancestors 'none'" in shown["content-security-policy"]
    assert (await ask(front, "/ui/", host="evil.example"))["status"] == 421
    assert (await ask(front, "/ui/", method="POST"))["status"] == 405
    assert (await ask(front, "/uix"))["status"] == 503
    front.withdraw("another hub leads", "https://leader:7373")
    elsewhere = await ask(front, "/ui/jobs/x")
    assert (elsewhere["status"], elsewhere["location"]) == (307, "https://leader:7373/ui/jobs/x")


async def test_a_hub_without_its_files_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    front = Front()
    front.hosts = Hosts(())
    shown = await ask(front, "/ui/")
    assert shown["status"] == 503
    assert b"./dev web" in shown["body"]
    assert b"DRAY_WEB" not in shown["body"]
    assert (await ask(front, "/"))["location"] == "/ui/"
    assert (await ask(front, "/assets/x.js"))["status"] == 404
