"""Pages and docstrings name what is there: modules, error codes, exit classes, fields of messages, words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dray.agent.decide.machine import FEATURES
from dray.wire.messages.hub import HUB_PAYLOADS
from dray.wire.messages.worker import WORKER_PAYLOADS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/dray"
MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
ROOMS = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
# Pages for users name programs of theirs; code has some in its examples.
OWN_FILES = ("docs/explain", "docs/decisions", "CONTRIBUTING", "src")
THEIRS = {"train.py", "evaluate.py", "transcribe.py"}
# Files of a home and subprotocols look like modules.
NO_MODULES = re.compile(r"hub\.sqlite|agent\.(lock|log)|hub\.log|dray\.client\.v")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page, or what a module says in comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        said = token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.string.startswith('"""')
        )
        if said:
            yield from enumerate(token.string.splitlines(), token.start[0])


def is_named(dotted: str) -> bool:
    """Whether rooms lead to a module, and a name behind it is in that module."""
    at, rest = SOURCE, dotted.removeprefix("dray.").split(".")
    for place, name in enumerate(rest):
        if (at / name).is_dir():
            at /= name
        elif (at / f"{name}.py").is_file():
            return place + 1 == len(rest) or rest[place + 1] in (at / f"{name}.py").read_text(
                encoding="utf-8"
            )
        else:
            return False
    return True


def test_modules_that_are_named_exist() -> None:
    dotted = re.compile(
        r"`((?:dray\.)?(?:" + "|".join(sorted(ROOMS - {"hub"})) + r"|hub\.[a-z]+)(?:\.\w+)+)`"
    )
    files = re.compile(r"(?<![\w*./-])((?:\w+/)*\w+\.py)\b")
    listed = [
        ROOT / "hatch_build.py",
        *MODULES,
        *(ROOT / "tools").glob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
    ]
    known, names = {str(one.relative_to(ROOT)) for one in listed}, {one.name for one in listed}
    wrong = []
    for path in (*MODULES, *PAGES):
        where = str(path.relative_to(ROOT))
        for number, line in prose(path):
            gone = [name for name in dotted.findall(line) if not (is_named(name) or NO_MODULES.match(name))]
            for name in files.findall(line) if where.startswith(OWN_FILES) else ():
                folders, _, last = name.rpartition("/")
                there = (
                    any(name == one or one.endswith(f"/{name}") for one in known)
                    if folders
                    else last in names
                )
                if not there and last not in THEIRS:
                    gone.append(name)
            wrong += [f"{where}:{number}: {name}" for name in gone]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("walk", ["job", "call"])
def test_a_walk_is_short_and_its_functions_exist(walk: str) -> None:
    page = (ROOT / "docs/explain/architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"## The walk of a {walk}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"`((?:\w+\.){2,}\w+)`", section)
    assert 30 <= len(steps) <= 45
    wrong = []
    for step in steps:
        path, rest = SOURCE, step.split(".")
        while (path / rest[0]).is_dir():
            path /= rest.pop(0)
        body: list[ast.stmt] = ast.parse((path / f"{rest.pop(0)}.py").read_text(encoding="utf-8")).body
        for name in rest:
            defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            found = [node for node in body if isinstance(node, defined) and node.name == name]
            if not found:
                wrong.append(step)
                break
            body = found[-1].body
    assert not wrong


def test_error_codes_are_those_of_the_code() -> None:
    codes = set()
    for path in MODULES:
        for kind in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
        ):
            for item in kind.body:
                if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "code":
                    codes.add(ast.literal_eval(item.value))
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == codes - {"error"}


# Which argument of these is an exit class.
CLASS_AT = {"make_result": 3, "end_task": 5, "end_waiting": 4, "end_calls": 5, "_end": 3, "tell_end": 3}


def literals(node: ast.AST | None) -> Iterator[str]:
    """Words that an expression may come to, as far as they stand there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            yield from literals(part)
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)


def exit_classes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in CLASS_AT and len(node.args) > CLASS_AT[name]:
                yield from literals(node.args[CLASS_AT[name]])
            for keyword in node.keywords:
                if keyword.arg == "exit_class":
                    yield from literals(keyword.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "exit_class":
                    yield from literals(value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if ast.unparse(target).endswith(("exit_class", "['exit_class']", "rest_class")):
                    yield from literals(node.value)


def test_exit_classes_are_those_of_the_code() -> None:
    told: set[str] = set()
    for room in ("agent", "runner", "hub", "core"):
        for path in (SOURCE / room).rglob("*.py"):
            told |= set(exit_classes(ast.parse(path.read_text(encoding="utf-8"))))
    assert {"lost", "prolog", "environment", "dependency", "refused"} <= told, "the search itself is blind"
    page = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8").partition("## Exit classes")[2]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert told <= named, told - named
    everything = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    assert not [word for word in named if f'"{word}"' not in everything]


@pytest.mark.parametrize(
    ("title", "payloads"), [("Worker to hub", WORKER_PAYLOADS), ("Hub to worker", HUB_PAYLOADS)]
)
def test_the_protocol_names_the_fields_that_are_read(
    title: str, payloads: dict[str, type[msgspec.Struct]]
) -> None:
    page = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows: dict[str, frozenset[str]] = {}
    for line in re.findall(r"^\| (`.+) \|$", section, re.MULTILINE):
        # What answers a worker's message, in the last column, is no field of it.
        kinds, *cells = re.sub(r"\(.*?\)|on `register`", "", line).split("|")[:3]
        fields = frozenset(re.findall(r"`(\w+)`", " ".join(cells)))
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", kinds), fields)
    assert set(payloads) <= set(rows)
    # The questions, and calls, have their fields in an example.
    by_example = {kind for kind, fields in rows.items() if not fields}
    assert by_example <= {
        "metrics_request",
        "worker_list_request",
        "worker_show_request",
        "calls_assign",
        "calls_ack",
        "no_work",
        "metrics_response",
    }
    for kind, struct in payloads.items():
        if rows[kind] and kind != "error":
            assert rows[kind] == set(struct.__struct_fields__), kind


def test_the_protocol_names_every_feature_of_the_agent() -> None:
    page = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")
    register = page.partition("\n### register\n")[2].partition("\n### ")[0]
    assert not [feature for feature in FEATURES if f"`{feature}`" not in register]
