"""Keep files that code writes (the state diagram, the API description) equal to what the code says today.

`ROWS`, beside what is made of the protos, is the whole registry: a file, the module that knows its content, and the
function there that returns the text, given nothing or, where one makes several, the name of the file. `--write` writes
the files; without it a stale or missing file fails.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    file: str
    module: str
    function: str
    name: str = ""


ROWS: tuple[Row, ...] = (
    Row("docs/reference/openapi.json", "dray.hub.http.openapi", "openapi_text"),
    Row("docs/reference/states.md", "generate_states", "states_page"),
    Row("docs/reference/cli.md", "generate_cli_reference", "write_reference"),
    Row("docs/reference/config.md", "generate_reference_tables", "write_config"),
    Row("docs/reference/policy.md", "generate_policy_reference", "write_policy_page"),
    Row("docs/reference/errors.md", "generate_reference_tables", "write_errors"),
    Row("docs/reference/metrics.md", "generate_reference_tables", "write_metrics"),
    Row("docs/reference/api.md", "generate_reference_tables", "write_api"),
    Row("docs/reference/grpc.md", "generate_grpc_reference", "write_reference"),
)


def stub_rows() -> list[Row]:
    """A row for each file that the compiler makes of the protos."""
    names: list[str] = importlib.import_module("generate_stubs").files()
    return [Row(f"src/{name}", "generate_stubs", "stub", name) for name in names]


def render(row: Row) -> str:
    function: Callable[..., str] = getattr(importlib.import_module(row.module), row.function)
    text = function(row.name) if row.name else function()
    return text.rstrip("\n") + "\n"


def check(row: Row, root: Path) -> str:
    """The difference in words, empty when there is none."""
    path = root / row.file
    if not path.exists():
        return f"{row.file} is missing: ./dev fix writes it"
    difference = list(
        difflib.unified_diff(
            path.read_text(encoding="utf-8").splitlines(),
            render(row).splitlines(),
            row.file,
            f"{row.module}.{row.function}()",
            lineterm="",
            n=1,
        )
    )
    if not difference:
        return ""
    return "\n".join([*difference[:40], f"{row.file} is stale: ./dev fix writes it"])


def write(row: Row, root: Path) -> None:
    path = root / row.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(row), encoding="utf-8")


def run(rows: Sequence[Row], root: Path, *, writes: bool) -> int:
    if writes:
        for row in rows:
            write(row, root)
        return 0
    stale = [text for text in (check(row, root) for row in rows) if text]
    print("\n\n".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    # Stubs first: pages are made by code that imports them.
    sys.exit(run((*stub_rows(), *ROWS), ROOT, writes=sys.argv[1:] == ["--write"]))
