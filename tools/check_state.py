"""Keep `apply` the only one who changes a `State`: scheduling and the hub read it, and say what is to change as events.

Follows what a function reaches through a state (arguments of a type that a state is made of, attributes called `state`,
what is taken out of those, what a loop draws from them) and refuses assignments, deletions and calls that change it.
Which methods and functions of the core change what they are given is read from their own text, with what those call.
A state that a function made itself it may fill. Takes the folder that holds the `dray` package (default: src).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READERS = ("dray.core.scheduling", "dray.hub")
# Where the types lie that a state is made of, and where the rules lie that change them.
HELD = ("dray.core.lifecycle.state", "dray.core.model.records")
RULES = "dray.core.lifecycle"

STATE_TYPES = frozenset(
    "State Columns Backlog Bucket Parties Party Experience Shapes Job Task Attempt Worker Presence".split()
)
STATE_NAMES = frozenset(("state", "_state"))
MUTATORS = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort"
    " update".split()
)
# Functions that change their first argument.
CHANGING = frozenset("heappush heappop heapify heapreplace heappushpop setattr delattr".split())
# What takes something out of a collection, and what makes a new one of the same things.
TAKING = frozenset("get values items keys".split())
WRAPPING = frozenset(
    "list tuple dict set sorted iter enumerate reversed zip min max next chain islice".split()
)
# Kept by the very class that it is derived from, and the same for whoever asks first.
DERIVED = frozenset("inverse refresh_ranks typical".split())

# Functions of the rules that readers may call, and why.
ALLOWED = {
    "dray.core.lifecycle.apply.apply": "the one way in which a state changes",
    "dray.core.lifecycle.timers.due": "takes what has run out from the timers, and says what follows as events",
    "dray.core.lifecycle.timers.forget_answered": "drops looks that would come to nothing",
    "dray.core.lifecycle.recovery.take_touched": "whoever writes rows is told which",
    "dray.core.lifecycle.recovery.release": "ended work leaves memory once its rows are written",
    "dray.core.lifecycle.recovery.load": "a hub or a forecast begins with it",
    "dray.core.lifecycle.recovery.read_ledger": "a hub or a forecast begins with it",
    "dray.core.lifecycle.recovery.recall": "a hub begins with it",
    "dray.core.lifecycle.recovery.wake_up": "a hub begins with it",
}
# Modules that are not asked, and why.
EXEMPT = {
    "dray.core.scheduling.explain.trial": "a guest stands in the state while it is tried, within one turn",
    "dray.hub.engine.follower": "a state that nobody has woken: what a clock or a pass would take out is dropped",
}

REACHED, HOLDS = "reached", "holds"


class Module(NamedTuple):
    """A module, and which dotted name each imported name stands for."""

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, str]


def covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def read(source: Path) -> list[Module]:
    found = []
    for path in sorted((source / "dray").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if any(covers(prefix, name) for prefix in (*READERS, *HELD, RULES)):
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            found.append(Module(name, path, tree, imported(tree)))
    return found


def imported(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


class Known(NamedTuple):
    """Names of methods that change their object, and dotted names of functions that change what they are given."""

    methods: set[str]
    functions: set[str]


class Walk:
    """One function, statement by statement. `own`: attributes of `self` through which a state is reached."""

    def __init__(self, module: Module, known: Known, own: Iterable[str] = (), of_state: bool = False) -> None:
        self._module, self._known = module, known
        self._own, self._of_state = set(own), of_state
        self._names: dict[str, str] = {}
        self.kept: set[str] = set()
        self.found: list[tuple[ast.AST, str]] = []

    def run(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Walk:
        arguments = function.args
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            words = set(ast.unparse(one.annotation).replace("|", " ").split()) if one.annotation else set()
            if words & STATE_TYPES or (self._of_state and one.arg == "self"):
                self._names[one.arg] = REACHED
        for statement in function.body:
            self._visit(statement)
        return self

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._visit(node.iter)
            self._bind(node.target, REACHED if self._kind(node.iter) else "")
            rest = node.ifs if isinstance(node, ast.comprehension) else (*node.body, *node.orelse)
            for part in rest:
                self._visit(part)
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            for one in node.generators:
                self._visit(one)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.comprehension):
                self._visit(child)
        self._judge(node)

    def _judge(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.NamedExpr):
            self._bind(node.target, self._kind(node.value))
        elif isinstance(node, ast.AugAssign):
            self._write(node.target)
            grows = isinstance(node.value, ast.List | ast.ListComp | ast.Set | ast.Dict)
            if grows and self._kind(node.target) == REACHED:
                self._refuse(node)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._write(target)
        elif isinstance(node, ast.Call) and self._changes(node):
            self._refuse(node)

    def _changes(self, call: ast.Call) -> bool:
        function, given = call.func, [*call.args, *(one.value for one in call.keywords)]
        name = getattr(function, "attr", getattr(function, "id", ""))
        changes = name in self._known.methods - DERIVED
        if changes and isinstance(function, ast.Attribute) and self._kind(function.value) == REACHED:
            return True
        if name in CHANGING:
            return bool(given) and self._kind(given[0]) == REACHED
        target = self._resolve(function)
        if target in self._known.functions and target not in ALLOWED:
            return any(self._kind(one) == REACHED for one in given)
        return False

    def _resolve(self, function: ast.expr) -> str:
        imports, own = self._module.imports, self._module.name
        if isinstance(function, ast.Name):
            return imports.get(function.id, f"{own}.{function.id}")
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return f"{imports.get(function.value.id, '')}.{function.attr}"
        return ""

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, part in zip(target.elts, value.elts, strict=False):
                self._assign(one, part)
            return
        self._write(target)
        kind = self._kind(value)
        self._bind(target, REACHED if kind and isinstance(target, ast.Tuple) else kind)

    def _bind(self, target: ast.expr, kind: str) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = kind
        elif isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._bind(one, kind)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, HOLDS if kind else "")
        elif isinstance(target, ast.Attribute) and kind == REACHED and ast.unparse(target.value) == "self":
            self.kept.add(target.attr)

    def _write(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._write(one)
        elif isinstance(target, ast.Attribute | ast.Subscript) and self._kind(target.value) == REACHED:
            self._refuse(target)

    def _refuse(self, node: ast.AST) -> None:
        self.found.append((node, ast.unparse(node)))

    def _kind(self, node: ast.expr) -> str:
        """Whether an expression is part of a state, or a collection of such parts that is not one itself."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, REACHED if node.id in STATE_NAMES else "")
        if isinstance(node, ast.Attribute):
            own = ast.unparse(node.value) == "self" and node.attr in self._own
            return REACHED if own or node.attr in STATE_NAMES or self._kind(node.value) == REACHED else ""
        if isinstance(node, ast.Subscript):
            whole = self._kind(node.value)
            return whole if isinstance(node.slice, ast.Slice) and whole == HOLDS else REACHED if whole else ""
        if isinstance(node, ast.Call):
            return self._made(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return HOLDS if self._kind(node.elt) else ""
        if isinstance(node, ast.DictComp):
            return HOLDS if self._kind(node.value) else ""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return HOLDS if any(self._kind(one) for one in node.elts) else ""
        if isinstance(node, ast.IfExp):
            return self._kind(node.body) or self._kind(node.orelse)
        if isinstance(node, ast.BoolOp):
            return next((kind for one in node.values if (kind := self._kind(one))), "")
        if isinstance(node, ast.NamedExpr | ast.Starred | ast.Await):
            return self._kind(node.value)
        return ""

    def _made(self, call: ast.Call) -> str:
        if isinstance(call.func, ast.Attribute) and call.func.attr in TAKING:
            return REACHED if self._kind(call.func.value) else ""
        if isinstance(call.func, ast.Name) and call.func.id in WRAPPING:
            kind = HOLDS if any(self._kind(one) for one in call.args) else ""
            return REACHED if kind and call.func.id in ("min", "max", "next") else kind
        return ""


def functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def learn(modules: list[Module]) -> Known:
    """Which methods and functions of the core change what they are given; again until nothing new is found."""
    known = Known(set(MUTATORS), set())
    before = -1
    while before != len(known.methods) + len(known.functions):
        before = len(known.methods) + len(known.functions)
        for module in modules:
            if any(covers(prefix, module.name) for prefix in HELD):
                for method in (one for kind in classes(module) for one in functions(kind.body)):
                    if method.name != "__init__" and Walk(module, known, of_state=True).run(method).found:
                        known.methods.add(method.name)
            if covers(RULES, module.name):
                for function in functions(module.tree.body):
                    if Walk(module, known).run(function).found:
                        known.functions.add(f"{module.name}.{function.name}")
    return known


def violations(module: Module, known: Known) -> Iterator[str]:
    walks = [Walk(module, known).run(function) for function in functions(module.tree.body)]
    for kind in classes(module):
        methods = list(functions(kind.body))
        kept = {name for method in methods for name in Walk(module, known).run(method).kept}
        walks += [Walk(module, known, kept).run(method) for method in methods]
    for walk in walks:
        for node, text in walk.found:
            yield (
                f"{module.path}:{getattr(node, 'lineno', 0)}: {module.name} may not change a state: {text}; "
                "make it an event that `apply` folds in"
            )


def main() -> int:
    source = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "src"
    modules = read(source)
    known = learn(modules)
    found = [
        violation
        for module in modules
        if any(covers(prefix, module.name) for prefix in READERS) and module.name not in EXEMPT
        for violation in violations(module, known)
    ]
    print("\n".join(found).replace(f"{ROOT}/", ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
