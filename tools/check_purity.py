"""Keep the pure parts pure: a module there imports what its list allows and calls nothing that asks the world.

import-linter forbids by name; this check allows by name, so a module nobody thought of is refused as well. It also
sees the doors that need no import: `open`, `print`, `__import__`, the clock behind `datetime.now`, numpy's own
random numbers. Takes the folder that holds the `dray` package (default: src).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PURE_STDLIB = frozenset(
    "__future__ abc array bisect collections contextlib dataclasses decimal difflib enum fractions"
    " functools hashlib heapq itertools json keyword math operator re statistics string struct sys"
    " textwrap types typing typing_extensions unicodedata weakref zlib".split()
)
STDLIB = frozenset(sys.stdlib_module_names)


class Rule(NamedTuple):
    """`module` is a dotted name (a package covers all below it); `imports` are top-level or dotted names."""

    module: str
    imports: frozenset[str]
    # Pure code may not call what reaches outside; code that is only free of dependencies may.
    pure: bool


RULES = (
    Rule("dray.errors", PURE_STDLIB, pure=True),
    Rule("dray.core", PURE_STDLIB | {"numpy", "msgspec", "dray.core", "dray.errors"}, pure=True),
    Rule(
        "dray.agent.decide",
        PURE_STDLIB | {"msgspec", "dray.agent.decide", "dray.core", "dray.errors", "dray.wire"},
        pure=True,
    ),
    # Started beside every task and kept for its whole life: nothing but the interpreter may be able to break it.
    Rule(
        "dray.agent.supervisor",
        STDLIB | {"dray.agent.supervisor", "dray.descriptors", "dray.processes"},
        pure=False,
    ),
    Rule("dray.descriptors", STDLIB, pure=False),
    Rule("dray.processes", STDLIB, pure=False),
)

IMPURE_NAMES = frozenset("open print input breakpoint exec eval compile __import__ id hash".split())
IMPURE_ATTRIBUTES = frozenset(
    "numpy.random np.random sys.argv sys.stdin sys.stdout sys.stderr sys.exit sys.modules sys.path".split()
)


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def imported_names(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Dotted names of one import; `from a import b` is a.b, which a list that allows a allows too."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            anchor = module.split(".")
            anchor = anchor[: len(anchor) - node.level + (1 if is_package else 0)]
            base = ".".join([*anchor, base] if base else anchor)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def forbidden_use(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_NAMES:
        return f"{node.func.id}()"
    if isinstance(node, ast.Attribute) and ast.unparse(node) in IMPURE_ATTRIBUTES:
        return ast.unparse(node)
    return None


def place(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)}"


def may_import(rule: Rule, name: str) -> bool:
    allowed = any(covers(entry, name) for entry in rule.imports)
    return allowed and not (rule.pure and any(covers(entry, name) for entry in IMPURE_ATTRIBUTES))


def violations(path: Path, module: str, rule: Rule) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        for name in imported_names(node, module, path.name == "__init__.py"):
            if not may_import(rule, name):
                yield f"{place(path, node)}: {module} may not import {name}: not on the list of {rule.module}"
        use = forbidden_use(node) if rule.pure else None
        if use:
            yield f"{place(path, node)}: {module} may not use {use}: {rule.module} is pure"


def main() -> int:
    source = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "src"
    found = [
        violation
        for path in sorted((source / "dray").rglob("*.py"))
        for rule in RULES
        if covers(rule.module, module := module_name(path, source))
        for violation in violations(path, module, rule)
    ]
    print("\n".join(found).replace(f"{ROOT}/", ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
