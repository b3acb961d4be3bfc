"""Pages on a cluster that is full of things: what they say is what the API says, for everybody, in every form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.stage import Stage
from tests.browser.visitor import Visitor

Visit = Callable[..., Visitor]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


def pages_of(stage: Stage) -> list[str]:
    job = f"/jobs/{stage.waits}"
    tabs = [
        f"/jobs/{stage.array}?tab={tab}" for tab in ("tasks", "log", "events", "spec", "load", "receipts")
    ]
    return [
        *(
            "/",
            "/?colour=owner&sort=-held&q=h100",
            "/jobs",
            "/jobs?state=failed",
            "/queues",
            "/queues/default",
        ),
        *(job, f"/jobs/{stage.failed}?tab=why", *tabs, "/workers/fake-h100-1", "/services", "/services/docs"),
        *(
            "/timeline",
            f"/timeline?hours=1&kind=H100&job={stage.waits}",
            "/failures",
            "/submit?command=true&gpus=1",
            "/submit?as=yaml",
            "/templates",
            "/whatif",
            *(f"/whatif?tab={tab}" for tab in ("drain", "more", "past")),
            "/nowhere",
        ),
        *(f"/hub?tab={tab}" for tab in ("doctor", "hubs", "policy", "tokens", "audit")),
    ]


def settle(page: Page) -> None:
    """Wait until nothing on a page is still asked for."""
    expect(page.locator("main")).not_to_have_text("")
    expect(page.get_by_text("Asking the hub …")).to_have_count(0)


# Some sixty pages, each looked through by axe, on a machine that does other things as well.
@pytest.mark.timeout(300)
def test_every_page_is_whole_for_everybody_and_in_every_form(stage: Stage, visit: Visit) -> None:
    """Under its policy of contents, without a word on the console, without a fault that axe knows; light and dark, on a
    phone, at twice the size, with forced colours and with motion reduced. And it comes back as it was.
    """
    forms: tuple[dict[str, Any], ...] = (
        {"color_scheme": "light"},
        {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}, "reduced_motion": "reduce"},
        {"color_scheme": "light", "viewport": {"width": 640, "height": 400}, "forced_colors": "active"},
    )
    faults, paths = [], pages_of(stage)
    visitors = [visit(stage.cluster, **form) for form in forms]
    for number, visitor in enumerate(visitors):
        page = visitor.sign_in()
        # Parts of one page are built alike: each is looked at closely in one form, pages in both themes.
        for place, path in enumerate(paths if number < 2 else paths[::3]):
            visitor.go(path)
            settle(page)
            assert visitor.overflow() <= 0, f"{path} scrolls sideways at {forms[number]}"
            assert page.url == f"{stage.url}/ui{path}"
            if number == place % 2 or (number < 2 and "=" not in path):
                faults += visitor.find_faults()
    assert not faults, "\n".join(faults)

    # Where one was is where one comes back to.
    visitor = visitors[0]
    page = visitor.page
    page.go_back()
    expect(page).to_have_url(re.compile(r"tab=tokens$"))
    page.go_forward()
    expect(page).to_have_url(re.compile(r"tab=audit$"))
    other = visitor.open_tab()
    other.goto(f"{stage.url}/ui/?q=h100&sort=-held")
    expect(other.get_by_role("row")).to_have_count(4)
    assert other.get_by_label("Find").input_value() == "h100"


def test_pages_say_what_the_api_says(stage: Stage, visit: Visit) -> None:
    api = stage.cluster.call
    visitor = visit(stage.cluster)
    page = visitor.sign_in()
    said = api("GET", "/cluster").json
    expect(page.locator(".lead")).to_have_text(said["headline"])
    # The table has every worker that the canvas has, with the same share of it held.
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(said["columns"]["id"]))
    expect(page.get_by_role("row", name=re.compile("fake-h100-1"))).to_contain_text("8/8 GPUs")
    expect(page.get_by_role("row", name=re.compile("fake-a100-3"))).to_contain_text("draining")
    box = page.locator("canvas").bounding_box()
    assert box is not None
    assert box["width"] > 300
    # A full worker, a hatched one and a free one differ in their pixels.
    shades = page.evaluate(
        """() => {
            const canvas = document.querySelector('canvas');
            const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const seen = new Set();
            for (let at = 0; at < data.length; at += 4) seen.add(data.slice(at, at + 3).join());
            return [seen.size, width, height];
        }"""
    )
    assert shades[0] > 5
    page.locator("[role=application]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("figcaption")).to_contain_text("% held")

    visitor.go(f"/jobs/{stage.waits}")
    why = api("GET", f"/jobs/{stage.waits}/why").json
    expect(page.locator(".lead")).to_have_text(why["summary"])
    for blocker in why["blockers"]:
        expect(page.get_by_text(blocker["message"]).first).to_be_visible()

    visitor.go(f"/jobs/{stage.failed}")
    expect(page.locator(".log")).to_contain_text("RuntimeError: CUDA out of memory")
    visitor.go(f"/jobs/{stage.array}?tab=tasks&state=failed")
    expect(page.locator("tbody tr")).to_have_count(3)
    visitor.go("/failures")
    failures = api("GET", "/failures").json
    expect(page.locator(".lead")).to_have_text(failures["headline"])
    expect(page.locator(".card")).to_have_count(len(failures["groups"]))
    # Bars are attempts: each card of the wide job has one, and what is to come is foreseen or kept.
    visitor.go("/timeline?kind=H100")
    shown = api("GET", "/timeline", kind="H100").json
    expect(page.locator(".lead")).to_have_text(shown["headline"])
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("row", name=re.compile("llama-sft"))).to_have_count(8)
    attempt = api("GET", f"/jobs/{stage.runs}").json["attempts"][0]
    bars = [bar for row in shown["rows"] for bar in row["bars"] if bar[5] == stage.runs]
    assert {row["worker"] for row in shown["rows"] if any(bar[5] == stage.runs for bar in row["bars"])} == {
        attempt["worker"]
    }
    assert sorted(bar[0] for bar in bars) == attempt["devices"]
    visitor.go("/services/docs")
    expect(page.get_by_text("2 of 2")).to_be_visible()


def test_who_may_not_does_not_see_the_button(stage: Stage, visit: Visit) -> None:
    """Sentences instead of blanks, for one who only looks and one who is no admin."""
    asked = {"user": "ada", "scopes": ["read"], "shared_account": True}
    reader = stage.cluster.call("POST", "/tokens", asked).json["token"]
    visitor = visit(stage.cluster)
    page = visitor.sign_in(reader, f"/jobs/{stage.waits}")
    settle(page)
    expect(page.get_by_role("heading", name="train-42")).to_be_visible()
    assert page.get_by_role("button", name="Cancel").count() == 0
    visitor.go("/submit")
    expect(page.get_by_text("Your token may look and not submit")).to_be_visible()
    visitor.go("/jobs")
    expect(page.get_by_role("link", name="train-42")).to_be_visible()
    assert page.locator("tbody input[type=checkbox]").count() == 0
    # Of others nothing, not even their names.
    assert "notebook" not in page.locator("main").inner_text()
    visitor.go("/hub")
    expect(page.get_by_text("This page is for admins")).to_be_visible()
    visitor.go("/workers/fake-h100-1")
    settle(page)
    assert page.get_by_role("button", name="Drain").count() == 0


def test_more_machines_are_asked_for_and_today_stands_beside_then(stage: Stage, visit: Visit) -> None:
    visitor = visit(stage.cluster)
    page = visitor.sign_in(path="/whatif?tab=more")
    page.get_by_label("More like").fill("fake-h100-1")
    page.get_by_label("How many").fill("4")
    page.get_by_role("button", name="What then?").click()
    expect(page.get_by_role("heading", name="Today")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("heading", name="Then")).to_be_visible()
    expect(page.get_by_role("table", name="The middle wait of each user's tasks")).to_be_visible()
