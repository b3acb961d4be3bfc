"""What the README and the pages of docs/ tell people to type works, and prints what they show."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = [
    page
    for page in [
        "README.md",
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/howto/*.md")),
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/tutorial/*.md")),
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/operations/*.md")),
    ]
    # Their examples are Python, or need a database, and have tests of their own.
    if page
    not in (
        "docs/howto/test-against-dray.md",
        "docs/howto/notebooks.md",
        "docs/operations/postgresql.md",
        "docs/operations/several-hubs.md",
        "docs/operations/redis.md",
    )
]
# What people type first, as it starts for them: from nothing.
COLD = ("README.md", "docs/tutorial/first-job.md")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_work(page: str, play: Callable[..., tuple[int, list[str]]]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if "$ curl " in text and shutil.which("curl") is None:
        pytest.skip("this page shows curl, which this machine does not have")
    count, wrong = play(text, forked=page not in COLD)
    assert not wrong, "\n".join([f"{page}:", *wrong])
    assert count, f"{page} shows no command that is run"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{page} links to {target}, which is not there"
        if anchor:
            assert anchor in _anchors(found), (
                f"{page} links to {target}, and {found.name} has no such heading"
            )


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_from_the_map() -> None:
    """By links alone; a link to a folder stands for all that is in it."""
    reached: set[Path] = set()
    ahead = [ROOT / "docs/index.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or not page.is_relative_to(ROOT / "docs"):
            continue
        reached.add(page)
        if page.suffix == ".md":
            targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
            ahead += [(page.parent / target).resolve() for target in targets if target]
    pages = [path for path in ROOT.glob("docs/**/*.md") if not {path, path.parent} & reached]
    assert not pages, f"no link leads to {', '.join(str(path.relative_to(ROOT)) for path in pages)}"
