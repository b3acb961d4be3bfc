"""Fail on files, functions and rooms that have outgrown one reading, warn about those on their way there.

Takes folders to look through (default: all code of the project). Generated protobuf modules do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples", "web")
SUFFIXES = (".py", ".ts", ".tsx")
IGNORED = ("node_modules", "dist", "__pycache__", ".venv")
FILE_WARN, FILE_STOP = 400, 600
FUNCTION_WARN, FUNCTION_STOP = 60, 70
# Modules in one package, its __init__.py aside. Benchmarks are run by their names, one file each.
ROOM_STOP = 12
NO_ROOM = ROOT / "benchmarks"


class Finding(NamedTuple):
    fails: bool
    text: str


def judge(where: str, what: str, lines: int, warn: int, stop: int) -> Iterator[Finding]:
    if lines > stop:
        yield Finding(True, f"{where}: error: {what} has {lines} lines, the limit is {stop}: split it")
    elif lines > warn:
        yield Finding(False, f"{where}: warning: {what} has {lines} lines and the limit is {stop}")


def measure(path: Path) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    yield from judge(str(path), "the file", len(text.splitlines()), FILE_WARN, FILE_STOP)
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Decorators are not counted: they belong to the interface, not to the body one has to follow.
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield from judge(f"{path}:{node.lineno}", f"{node.name}()", lines, FUNCTION_WARN, FUNCTION_STOP)


def code_files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            generated = "_pb2" in path.stem or path.name.endswith(".d.ts")
            if path.suffix in SUFFIXES and not generated and not set(IGNORED) & set(path.parts):
                yield path


def rooms(paths: list[Path]) -> Iterator[Finding]:
    """Packages with more modules than one looks through for a name."""
    for folder in sorted({path.parent for path in paths if path.name == "__init__.py"}):
        count = sum(path.parent == folder and path.name != "__init__.py" for path in paths)
        if count > ROOM_STOP and folder != NO_ROOM:
            yield Finding(
                True, f"{folder}: error: {count} modules, the limit is {ROOM_STOP}: make rooms of it"
            )


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:]] or [ROOT / name for name in FOLDERS]
    paths = list(code_files(folders))
    findings = [finding for path in paths for finding in measure(path)] + list(rooms(paths))
    for finding in sorted(findings, key=lambda finding: finding.fails):
        print(finding.text.replace(f"{ROOT}/", ""))
    return 1 if any(finding.fails for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
