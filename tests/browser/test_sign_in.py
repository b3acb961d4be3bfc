"""Signing in and out: with what, what stays in the browser, and what another page in it can do with that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect
from tests.browser.visitor import Visitor
from tests.e2e.cluster import Cluster

Visit = Callable[..., Visitor]


def make_token(site: Cluster, user: str, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = site.call(
        "POST", "/tokens", {"user": user, "scopes": list(scopes), "shared_account": True, **more}
    )
    assert answer.status == 201, answer
    document: dict[str, Any] = answer.json
    return document


def type_token(page: Page, token: str) -> None:
    page.get_by_label("Or paste a token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_a_browser_signs_in_with_a_persons_token_and_keeps_none_of_it(site: Cluster, visit: Visit) -> None:
    ann = make_token(site, "ann", "submit")
    worker, brief = make_token(site, "ann", "worker"), make_token(site, "ann", "read", expires_s=0.001)
    visitor = visit(site)
    page = visitor.go("/jobs?state=failed")
    for token, words in (
        ("dray_00000000_nothing", "does not know this token"),
        (worker["token"], "sign in with one that has the scope"),
        (brief["token"], "expired"),
    ):
        type_token(page, token)
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(page.get_by_label("Or paste a token")).to_have_value("")
    type_token(page, ann["token"])
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert page.url.endswith("/ui/jobs?state=failed")

    # What a script could take is half of a secret that is not the token's.
    stored = page.evaluate("() => JSON.stringify({...localStorage, ...sessionStorage})")
    secret = ann["token"].split("_", 2)[2]
    seen = [stored, page.evaluate("() => document.cookie"), *visitor.said, *visitor.asked, site.hub_text()]
    assert page.evaluate("() => document.cookie") == ""
    assert not any(secret in text or ann["token"] in text for text in seen)
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["name"] == "dray_web"
    assert json.loads(stored)["dray.session"] not in cookie["value"]

    # Neither half opens anything, nor both where another page asks.
    halves = {"Cookie": f"dray_web={cookie['value']}", "X-Dray-Session": json.loads(stored)["dray.session"]}
    ask = [
        ({}, 401),
        ({"Cookie": halves["Cookie"]}, 401),
        ({"X-Dray-Session": halves["X-Dray-Session"]}, 401),
        (halves, 200),
        ({**halves, "Sec-Fetch-Site": "same-origin", "Origin": site.url}, 200),
        ({**halves, "Sec-Fetch-Site": "same-site"}, 401),
        ({**halves, "Sec-Fetch-Site": "cross-site"}, 401),
        ({**halves, "Origin": "http://127.0.0.1:1"}, 403),
        ({**halves, "Host": "evil.example"}, 421),
    ]
    for headers, status in ask:
        assert raw(site, "GET", "/api/v1/jobs", headers)[0] == status, headers
    assert raw(site, "OPTIONS", "/api/v1/jobs", {**halves, "Origin": "http://127.0.0.1:1"})[0] == 403

    # One profile, two tabs: out of one is out of both; nobody gets in with what was left.
    other = visitor.open_tab()
    other.goto(f"{site.url}/ui/jobs")
    expect(other.locator(".menu summary")).to_have_text("ann")
    listed = site.call("GET", "/tokens").json["tokens"]
    assert [one["user"] for one in listed if one["parent"] == ann["id"]] == ["ann"]
    page.locator(".menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    assert raw(site, "GET", "/api/v1/jobs", halves)[0] == 401
    assert not [one for one in site.call("GET", "/tokens").json["tokens"] if one["parent"] == ann["id"]]


def test_a_session_ends_with_the_token_that_began_it(site: Cluster, visit: Visit) -> None:
    bob = make_token(site, "bob", "submit", "worker")
    code = site.call("POST", "/session/code", token=bob["token"]).json["code"]
    visitor = visit(site)
    page = visitor.page
    page.goto(f"{site.url}/ui/jobs#code={code}")
    expect(page.locator(".menu summary")).to_have_text("bob")
    # The code left the address, and is good once.
    assert page.url == f"{site.url}/ui/jobs"
    assert not any(code in url for url in visitor.asked)
    assert site.call("POST", "/session", {"code": code}).status == 401
    session = next(one for one in site.call("GET", "/tokens").json["tokens"] if one["parent"] == bob["id"])
    assert session["scopes"] == ["submit"]
    # A session makes no others, and is no token for whoever has half of it.
    half = page.evaluate("() => localStorage.getItem('dray.session')")
    cookie = visitor.context.cookies()[0]["value"]
    whole = "dray_" + cookie.replace(".", "_", 1) + half
    assert site.call("GET", "/session", token=whole).json["session"] is True
    refused = site.call("POST", "/session", {"token": whole})
    assert refused.status == 403
    assert "is itself a session" in refused.error

    assert site.call("DELETE", f"/tokens/{bob['id']}").status == 200
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert site.call("GET", "/session", token=whole).status == 401
    listed = [one["id"] for one in site.call("GET", "/tokens").json["tokens"]]
    assert session["id"] not in listed
    audit = site.call("GET", "/audit", limit=100).json["records"]
    assert [row["target"] for row in audit if row["action"] == "session.open" and row["user"] == "bob"]


def raw(site: Cluster, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """A request with these headers and no others."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", site.front, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def test_pages_and_their_files_come_with_guards(site: Cluster, visit: Visit) -> None:
    answers = {
        path: raw(site, "GET", path, {}) for path in ("/", "/ui", "/ui/", "/ui/jobs/x/y", "/assets/none.js")
    }
    assert [status for status, _ in answers.values()] == [303, 303, 200, 200, 404]
    page = visit(site).sign_in(path="/jobs")
    expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
    expect(page.get_by_text('dray run -- echo "hello"')).to_be_visible()
    script = re.search(r'src="(/assets/[^"]+\.js)"', answers["/ui/"][1])
    assert script is not None
    found = page.context.request.get(f"{site.url}{script[1]}").headers
    assert "immutable" in found["cache-control"]
    assert found["content-encoding"] == "gzip"
    held = page.context.request.get(f"{site.url}/ui/").headers
    assert "require-trusted-types-for 'script'" in held["content-security-policy"]
    assert held["cache-control"] == "no-cache"
    assert held["x-frame-options"] == "DENY"
