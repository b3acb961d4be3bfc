"""Somebody with a browser at a hub: what is opened, and all that a page must never do.

Every violation of the policy of contents, every error and every request to another origin is noted. Waiting is done by
locators or from outside: what Playwright evaluates as text inside the page, its policy forbids, as it should.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect
from tests.browser import chromium
from tests.e2e.cluster import Cluster

LIMIT_MS = 30_000
# What a page may meet that is no fault of its own: the hub refused something that the test asked for, or was gone.
EXPECTED = ("Failed to load resource",)
expect.set_options(timeout=LIMIT_MS)


class Visitor:
    """One profile of a browser. `odd`: what was noted."""

    def __init__(self, browser: Browser, cluster: Cluster, **options: Any) -> None:
        self.cluster = cluster
        given = {"locale": "en-GB", "viewport": {"width": 1280, "height": 800}, **options}
        self.context = browser.new_context(**given)
        self.context.set_default_timeout(LIMIT_MS)
        self.odd: list[str] = []
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = self.open_tab()

    def open_tab(self) -> Page:
        """One more tab of the same profile."""
        page = self.context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.odd.append(f"page error: {error}"))
        page.on("request", self._note)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        self.said.append(message.text)
        if message.type in ("error", "warning") and not message.text.startswith(EXPECTED):
            self.odd.append(f"console {message.type}: {message.text}")

    def _note(self, request: Request) -> None:
        self.asked.append(request.url)
        parts = urlsplit(request.url)
        ours = urlsplit(self.cluster.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != ours.netloc:
            self.odd.append(f"asked another origin: {request.url}")

    def close(self) -> None:
        self.context.close()

    def go(self, path: str = "/") -> Page:
        self.page.goto(f"{self.cluster.url}/ui{path}")
        return self.page

    def sign_in(self, token: str = "", path: str = "/") -> Page:
        """By a code, as `dray ui` does."""
        answer = self.cluster.call("POST", "/session/code", token=token or None)
        assert answer.status == 201, answer
        self.page.goto(f"{self.cluster.url}/ui{path}#code={answer.json['code']}")
        expect(self.page.locator(".menu summary")).to_be_visible()
        return self.page

    def find_faults(self, page: Page | None = None) -> list[str]:
        """What axe finds, in a world of its own beside the page's."""
        page = page or self.page
        session = self.context.new_cdp_session(page)
        frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})
        where = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
        session.send("Runtime.evaluate", {"expression": chromium.axe(), **where, "returnByValue": False})
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        options = {"runOnly": tags, "resultTypes": ["violations"]}
        words = f"axe.run(document, {json.dumps(options)}).then(r => JSON.stringify(r.violations))"
        answer = session.send("Runtime.evaluate", {"expression": words, **where})
        session.detach()
        assert "exceptionDetails" not in answer, answer
        return [
            f"{urlsplit(page.url).path}: {found['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
            for found in json.loads(answer["result"]["value"])
            for node in found["nodes"]
        ]

    def overflow(self, page: Page | None = None) -> int:
        """By how many pixels a page is wider than its window."""
        found = (page or self.page).evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(found)
