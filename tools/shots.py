"""Pictures of every page of the dashboard: three widths, both themes, on a cluster that has something to show.

    ./dev shots [FOLDER] [PAGE ...]

Starts a hub with made-up machines and real jobs on them, looks at it with the browser of the tests, and stops it.
Without a folder the pictures of the manual are made anew, in `docs/pictures`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser import chromium  # noqa: E402 - found after the line above
from tests.browser.stage import Stage  # noqa: E402 - as above

# Those of the manual; pictures that lie in the repository are few and small.
MANUAL = ("cluster", "job-waits")
WIDTHS = (("phone", 360, 780), ("desk", 1280, 860), ("wall", 1920, 1080))
THEMES: tuple[Any, ...] = ("light", "dark")
SETTLE_MS = 700


class Shot(NamedTuple):
    name: str
    path: str


def shots(stage: Stage) -> list[Shot]:
    return [
        Shot("cluster", "/"),
        Shot("jobs", "/jobs"),
        Shot("job-waits", f"/jobs/{stage.waits}"),
        Shot("job-failed", f"/jobs/{stage.failed}"),
        Shot("job-array", f"/jobs/{stage.array}?tab=tasks"),
        Shot("worker", "/workers/fake-h100-1"),
        Shot("queues", "/queues"),
        Shot("queue", "/queues/default"),
        Shot("services", "/services"),
        Shot("submit", "/submit?command=python%20train.py&gpus=8"),
        Shot("templates", "/templates"),
        Shot("timeline", "/timeline"),
        Shot("failures", "/failures"),
        Shot("whatif", "/whatif"),
        Shot("hub", "/hub"),
    ]


def take(browser: Browser, stage: Stage, folder: Path, wanted: list[str], manual: bool) -> None:
    for width_name, width, height in WIDTHS:
        for theme in THEMES:
            if manual and (width_name, theme) != ("desk", "light"):
                continue
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB"
            )
            page = context.new_page()
            sign_in(page, stage)
            for shot in shots(stage):
                if (wanted or manual) and shot.name not in (wanted or MANUAL):
                    continue
                page.goto(f"{stage.url}/ui{shot.path}")
                page.locator("main").wait_for()
                page.wait_for_timeout(SETTLE_MS)
                name = f"{shot.name}.png" if manual else f"{shot.name}-{width_name}-{theme}.png"
                page.screenshot(path=folder / name, full_page=width_name == "phone")
            context.close()


def sign_in(page: Page, stage: Stage) -> None:
    page.goto(f"{stage.url}/ui/#code={stage.code()}")
    page.locator(".menu summary").wait_for()


def main() -> int:
    began = time.monotonic()
    manual = len(sys.argv) < 2
    folder = ROOT / "docs" / "pictures" if manual else Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = chromium.find()
    with Stage() as stage, sync_playwright() as playwright:
        env: dict[str, str | float | bool] = {**os.environ, **found.env}
        browser = playwright.chromium.launch(
            executable_path=found.program, args=list(chromium.FLAGS), env=env
        )
        take(browser, stage, folder, sys.argv[2:], manual)
        browser.close()
    print(f"pictures are in {folder}, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
