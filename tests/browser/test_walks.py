"""What a person does in a browser, to the result, with and without a mouse; and what breaks in between."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme
from playwright.sync_api import Browser, Page, expect
from tests.browser.test_pages import settle
from tests.browser.test_sign_in import make_token
from tests.browser.visitor import Visitor
from tests.e2e.cluster import Cluster

Visit = Callable[..., Visitor]
HOSTILE = "<img src=x onerror=alert(1)> \u202eevil\u202c 🙂 " + "x" * 200


def confirm(page: Page, name: str) -> None:
    """Press the button of a proposed change once its preview is there."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=name, exact=True).click()


def test_a_job_from_the_form_to_its_end(site: Cluster, visit: Visit) -> None:
    """Without a reload, and every change as it was announced."""
    release = site.folder / "go"
    visitor = visit(site)
    page = visitor.sign_in(path="/submit")
    page.get_by_label("Command").fill(f"echo first; until test -e {release}; do sleep 0.05; done; echo last")
    page.get_by_label("Name").fill("walked")
    page.get_by_label("Cores").fill("999")
    expect(page.get_by_text("cannot ever start")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="walked")).to_be_visible()
    job = page.url.rpartition("/")[2]
    why = site.call("GET", f"/jobs/{job}/why").json
    expect(page.locator(".lead")).to_have_text(why["summary"])
    # What would help is tried, shown, done; and it runs.
    assert why["change"]["assign"].startswith("cpus=")
    page.get_by_role("button", name=re.compile("^Preview cpus=")).click()
    expect(page.get_by_role("dialog")).to_contain_text("it would start now")
    confirm(page, "Change it")
    expect(page.get_by_role("dialog")).to_contain_text("Changed: cpus=")
    page.keyboard.press("Escape")
    expect(page.locator(".title .state")).to_have_text(re.compile("running"))
    page.get_by_role("link", name="log").click()
    expect(page.locator(".log")).to_contain_text("first")
    release.touch()
    expect(page.locator(".log")).to_contain_text("last")
    expect(page.locator(".title .state")).to_have_text(re.compile("succeeded"))
    expect(page.locator(".lead")).to_contain_text("Succeeded")
    assert not any("/ui/" in url for url in visitor.asked[3:]), "no page was loaded again"


def test_the_same_by_keys_alone_and_each_change_as_it_was_shown(site: Cluster, visit: Visit) -> None:
    first, second = (site.submit("true", name=name, hold=True) for name in ("one", "two"))
    visitor = visit(site)
    page = visitor.sign_in()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("queues and people")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="two")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar")).to_contain_text("2 jobs ticked")
    ring = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    # A preview says how many, the answer the same; undone, it is as it was.
    for action, shown in (("release", "2 jobs (2 pending) may start again"), ("cancel", "Nothing changes")):
        page.get_by_role("toolbar").get_by_role("button", name=action).focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(shown)
        if action == "release":
            dialog.get_by_role("button", name="Release 2 jobs").focus()
            page.keyboard.press("Enter")
            expect(dialog).to_contain_text("Done: 2 jobs")
            for job in (first, second):
                site.wait_state(job, "succeeded")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page.get_by_role("link", name="w1")).to_be_visible()
    page.get_by_role("link", name="w1").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="w1")).to_be_visible()
    page.keyboard.press("d")
    expect(page.get_by_role("dialog")).to_contain_text("takes no new work")
    confirm(page, "Drain")
    expect(page.get_by_role("dialog")).to_contain_text("Undo")
    assert site.call("GET", "/workers/w1").json["draining"] is True
    confirm(page, "Undo: resume")
    expect(page.get_by_role("dialog")).to_contain_text("takes work again")
    assert site.call("GET", "/workers/w1").json["draining"] is False


def test_what_people_and_programs_write_is_text(site: Cluster, visit: Visit) -> None:
    name = HOSTILE[:100]
    command = ("sh", "-c", 'printf "%s\\n" "$1"; printf "\\033[31m%s\\n" "$1" >&2; exit 3', "sh", HOSTILE)
    job = site.submit(*command, name=name, labels={"note": HOSTILE[:60]})
    site.wait_state(job, "failed")
    visitor = visit(site)
    page = visitor.sign_in(path=f"/jobs/{job}")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator(".log")).to_contain_text("<img src=x onerror=alert(1)>")
    for path in (
        "/jobs",
        "/failures",
        f"/jobs/{job}?tab=spec",
        f"/jobs/{job}?tab=events",
        f"/submit?like={job}",
    ):
        visitor.go(path)
        settle(page)
        assert page.locator("img").count() == 0
        assert visitor.overflow() <= 0, path


def test_pages_of_other_ports_and_names_can_do_nothing(site: Cluster, visit: Visit) -> None:
    """In the browser of somebody who is signed in: the cookie goes where the host goes, and opens nothing there."""
    got: list[dict[str, str]] = []

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visitor = visit(site)
        visitor.sign_in(path="/jobs")
        kept = site.submit("sleep", "1000", name="kept")
        evil = visitor.open_tab()
        for host in ("127.0.0.1", "localhost"):
            evil.goto(f"http://{host}:{server.server_port}/")
            tries = evil.evaluate(
                """async ([hub, job]) => {
                    const one = async (path, options) => {
                        try {
                            const answer = await fetch(hub + path, {credentials: 'include', ...options});
                            return answer.type === 'opaque' ? 'opaque' : answer.status;
                        } catch (fault) { return 'failed'; }
                    };
                    const socket = new Promise((done) => {
                        const made = new WebSocket(hub.replace('http', 'ws') + '/ws');
                        made.onopen = () => done('open');
                        made.onerror = () => done('failed');
                    });
                    const half = localStorage.getItem('dray.session');
                    return [half, await socket,
                        await one('/api/v1/jobs', {}),
                        await one('/api/v1/jobs', {headers: {'x-dray-session': 'guess'}}),
                        await one('/api/v1/jobs', {mode: 'no-cors'}),
                        await one(`/api/v1/jobs/${job}/cancel`, {method: 'POST', mode: 'no-cors'}),
                        await one('/api/v1/session', {method: 'POST', mode: 'no-cors', body: '{}'})];
                }""",
                [site.url, kept],
            )
            assert tries[:4] == [None, "failed", "failed", "failed"]
            assert set(tries[4:]) <= {"opaque", "failed"}
        # A port is no fence for a cookie: this is why it is but a half.
        assert any("dray_web=" in headers.get("Cookie", "") for headers in got)
        assert site.job(kept)["state"] == "running"
        # Nor can the hub's page be framed.
        evil.set_content(f"<iframe src='{site.url}/ui/'></iframe>")
        frame = evil.frame_locator("iframe")
        assert frame.locator("#app").count() == 0
        site.call("POST", f"/jobs/{kept}/cancel")
        visitor.odd.clear()  # what the other pages met is theirs
    finally:
        server.shutdown()
        server.server_close()


def test_a_hub_that_dies_and_comes_back(site: Cluster, visit: Visit) -> None:
    """The page says so, is right again by itself, and shows each thing once."""
    visitor = visit(site)
    page = visitor.sign_in(path="/jobs?name=after")
    expect(page.get_by_text("No job is like that")).to_be_visible()
    site.kill_hub()
    expect(page.get_by_role("status")).to_have_text(re.compile("reconnecting"))
    site.start_hub()
    job = site.submit("true", name="after")
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.get_by_role("link", name="after", exact=True)).to_have_count(1)
    site.wait_worker("w1")
    site.wait_state(job, "succeeded")
    expect(page.locator("tbody .state")).to_have_text(re.compile("succeeded"))
    # A token that is revoked while pages are open: the form, at once, and the stream has ended.
    eve = make_token(site, "eve", "submit")
    other = visit(site)
    theirs = other.sign_in(eve["token"], "/jobs")
    expect(theirs.get_by_role("status")).to_have_text("live")
    site.call("DELETE", f"/tokens/{eve['id']}")
    expect(theirs.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_store_that_was_restored_and_a_million_tasks(visit: Visit) -> None:
    """A page that has seen the future of an older store shows what there is; one of a huge array opens at once."""
    site = Cluster()
    try:
        site.start_hub()
        kept = site.submit("true", name="kept", hold=True, array={"first": 0, "last": 999_999})
        site.stop_hub()
        shutil.copytree(site.home, site.folder / "older")
        site.start_hub()
        lost = site.submit("true", name="lost", hold=True)
        visitor = visit(site)
        page = visitor.sign_in(path="/jobs")
        expect(page.get_by_role("link", name="lost", exact=True)).to_be_visible()
        site.stop_hub()
        site.home.rename(site.folder / "newer")
        (site.folder / "older").rename(site.home)
        site.start_hub()
        # The session was in the store that is gone: whoever it was signs in again.
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page = visitor.sign_in(path="/jobs")
        expect(page.get_by_role("link", name="kept", exact=True)).to_be_visible()
        assert site.call("GET", f"/jobs/{lost}").status == 404
        expect(page.get_by_role("link", name="lost", exact=True)).to_have_count(0)
        visitor.go(f"/jobs/{kept}?tab=tasks")
        expect(page.get_by_text("1,000,000 pending").first).to_be_visible()
        page.get_by_role("button", name="More").click()
        expect(page).to_have_url(re.compile("cursor="))
        assert page.evaluate("() => document.querySelectorAll('*').length") < 3000
    finally:
        site.close()


def test_over_tls_the_cookie_is_of_this_host_alone(browser: Browser) -> None:
    site = Cluster()
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    cert.cert_chain_pems[0].write_to_path(str(site.folder / "cert.pem"))
    cert.private_key_pem.write_to_path(str(site.folder / "key.pem"))
    flags = ("--tls-cert", str(site.folder / "cert.pem"), "--tls-key", str(site.folder / "key.pem"))
    try:
        site.start_hub(*flags)
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.goto(f"https://127.0.0.1:{site.port}/ui/")
        page.get_by_label("Or paste a token").fill(site.token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("No machine has joined yet")).to_be_visible()
        expect(page.get_by_text("dray worker start", exact=True)).to_be_visible()
        (cookie,) = context.cookies()
        assert (cookie["name"], cookie["secure"], cookie["path"]) == ("__Host-dray_web", True, "/")
        context.close()
    finally:
        site.close()


def test_ten_tabs_listen_by_one_stream(site: Cluster, visit: Visit) -> None:
    """A browser has six connections to a hub, whatever the number of tabs; each hears of everything."""
    visitor = visit(site)
    first = visitor.sign_in(path="/jobs?name=many")
    tabs = [first]
    for _ in range(9):
        tabs.append(visitor.open_tab())
        tabs[-1].goto(f"{site.url}/ui/jobs?name=many")
    site.submit("true", name="many", hold=True)
    for page in tabs:
        expect(page.get_by_role("link", name="many", exact=True)).to_be_visible()
    assert sum("/api/v1/live" in url for url in visitor.asked) < 6
    # The one that listens goes: another does.
    first.close()
    site.submit("true", name="many", hold=True)
    for page in tabs[1:]:
        expect(page.get_by_role("link", name="many", exact=True)).to_have_count(2)


def test_another_clock_and_another_place(site: Cluster, visit: Visit) -> None:
    """An hour off, in another zone: spans are those of the hub's clock."""
    job = site.submit("true", name="clocked")
    site.wait_state(job, "succeeded")
    visitor = visit(site, timezone_id="Pacific/Auckland")
    visitor.page.clock.install()
    visitor.page.clock.set_system_time(time.time() + 3600)
    page = visitor.sign_in(path="/jobs?name=clocked")
    expect(page.locator("tbody time").first).to_have_text(re.compile(r"just now|\d+ s ago|1 min ago"))
