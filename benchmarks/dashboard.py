"""What the dashboard costs and how soon it shows something, in a real browser, with 10,000 workers."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cluster import Cluster, cpu_seconds, running_cluster
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import running_fleet
from benchmarks.progress import tell
from dray.hub.pages.files import FOLDER

PAINTED = """() => {
    const canvas = document.querySelector('canvas');
    if (!canvas || !canvas.width || document.querySelectorAll('tbody tr').length < 10) return 0;
    const entry = performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint');
    return [entry ? entry.startTime : 0, performance.now()];
}"""
SHOWN = "name => [...document.querySelectorAll('tbody a')].some((link) => link.textContent === name)"


def measure(quick: bool) -> dict[str, Figure]:
    from playwright.sync_api import sync_playwright
    from tests.browser import chromium

    workers, jobs, quiet_s = (50, 2, 0.3) if quick else (10_000, 15, 15.0)
    try:
        found = chromium.find()
    except chromium.Missing as why:
        tell(f"no browser: {why}")
        return sizes()
    with running_cluster() as cluster, running_fleet(cluster, workers, beat_s=10.0) as fleet:
        fleet.ask("connect")
        with sync_playwright() as playwright:
            env: dict[str, str | float | bool] = {**os.environ, **found.env}
            browser = playwright.chromium.launch(
                executable_path=found.program, args=list(chromium.FLAGS), env=env
            )
            page = browser.new_context(locale="en-GB").new_page()
            code = call(cluster, "POST", "/session/code")["code"]
            page.goto(f"{cluster.url}/ui/#code={code}")
            page.locator("tbody tr").first.wait_for()
            paints, maps = [], []
            for _ in range(5):
                page.goto(f"{cluster.url}/ui/")
                while not (seen := page.evaluate(PAINTED)):
                    time.sleep(0.005)
                paints.append(seen[0])
                maps.append(seen[1])
            session = page.context.new_cdp_session(page)
            session.send("HeapProfiler.enable")
            session.send("HeapProfiler.collectGarbage")
            counts = {one["name"]: one["value"] for one in metrics(session)}
            before, began = cpu_seconds(cluster.hub_pid), time.perf_counter()
            time.sleep(quiet_s)
            with_tab = (cpu_seconds(cluster.hub_pid) - before) / (time.perf_counter() - began)
            page.goto(f"{cluster.url}/ui/jobs")
            page.locator("main h1").wait_for()
            delays = [until_shown(cluster, page, f"job-{number}") for number in range(jobs)]
            page.goto("about:blank")
            before, began = cpu_seconds(cluster.hub_pid), time.perf_counter()
            time.sleep(quiet_s)
            without = (cpu_seconds(cluster.hub_pid) - before) / (time.perf_counter() - began)
            browser.close()
    tell(f"first paint {statistics.median(paints):.0f} ms, map {statistics.median(maps):.0f} ms")
    many = f"{workers:,} workers"
    tab = Figure(
        f"hub's CPU for an open tab, {many}, nothing changes",
        "% of a core",
        max(0.0, 100 * (with_tab - without)),
    )
    tab.bars = [Bar(at_most=0.3)]
    return {
        **sizes(),
        "paint": figure("first contentful paint, signed in", "ms", paints, 400),
        "map": figure(f"map and table of {many} painted", "ms", maps, 1000),
        "pixel": figure("from the answer to a submit to the row on the page", "ms", delays, 250),
        "heap": figure(
            f"JS heap with {many}, after a collection", "MB", [counts["JSHeapUsedSize"] / 1e6], 40
        ),
        "nodes": figure("DOM nodes of that page", "nodes", [counts["Nodes"]], 3000),
        "tab": tab,
    }


def metrics(session: Any) -> list[dict[str, Any]]:
    session.send("Performance.enable")
    found: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    return found


def until_shown(cluster: Cluster, page: Any, name: str) -> float:
    call(cluster, "POST", "/jobs", {"command": ["true"], "name": name, "hold": True})
    began = time.perf_counter()
    while not page.evaluate(SHOWN, name):
        time.sleep(0.002)
    return 1000 * (time.perf_counter() - began)


def sizes() -> dict[str, Figure]:
    files = {
        path.name: len(gzip.compress(path.read_bytes(), 9)) for path in FOLDER.rglob("*") if path.is_file()
    }
    page = (FOLDER / "index.html").read_text()
    first = sum(size for name, size in files.items() if name in page and name.endswith((".js", ".css")))
    return {
        "first_load": figure("first load: JS and CSS, gzipped", "KB", [first / 1000], 60),
        "assets": figure("all files of the dashboard, gzipped", "KB", [sum(files.values()) / 1000], 160),
    }


def figure(what: str, unit: str, runs: list[float], most: float) -> Figure:
    return Figure(what, unit, statistics.median(runs), runs, bars=[Bar(at_most=most)])


def call(cluster: Cluster, method: str, path: str, body: Any = None) -> Any:
    line = HTTPConnection(urlsplit(cluster.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    line.request(method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers)
    answer = line.getresponse()
    document = json.loads(answer.read())
    line.close()
    assert answer.status < 300, document
    return document
