"""The import contracts hold, and each of them notices when it is broken.

Contracts are broken in a skeleton of the package under the project's own configuration, so that these tests keep
their meaning whatever the real modules import today. All breaks are made at once: the report names each import.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
LAYERS = "imports go down the layers"
CORE_LAYERS = "imports go down the layers of core"
PURITY = "core touches nothing outside itself"
UNLISTED = "unlisted = True"
NO_PICKLE = "the hub and the agent never unpickle"

# All modules, each of them empty.
SKELETON = sorted(
    {
        "__main__.py",
        *(str(path.relative_to(ROOT / "src/dray")) for path in (ROOT / "src/dray").rglob("*.py")),
    }
)
ROOMS = {name: contract for name, contract in CONTRACTS.items() if " rooms of " in name}

# contract, file, what goes into it
BREAKS = [
    (LAYERS, "errors.py", "import dray.core.model"),
    (LAYERS, "core/model/__init__.py", "import dray.wire"),
    (LAYERS, "core/scheduling/__init__.py", "import dray.hub"),
    (LAYERS, "wire/__init__.py", "import dray.config"),
    (LAYERS, "config.py", "import dray.wire"),
    (LAYERS, "wire/__init__.py", "import dray.hub"),
    (LAYERS, "hub/__init__.py", "import dray.agent"),
    (LAYERS, "hub/__init__.py", "import dray.client"),
    (LAYERS, "agent/__init__.py", "import dray.hub"),
    (LAYERS, "agent/__init__.py", "import dray.client"),
    (LAYERS, "client/__init__.py", "import dray.hub"),
    (LAYERS, "client/__init__.py", "def late():\n    from dray import agent"),
    (LAYERS, "hub/__init__.py", "import dray.cli"),
    (LAYERS, "client/__init__.py", "import dray.testing"),
    (LAYERS, "sim/__init__.py", "import dray.testing"),
    (LAYERS, "testing/__init__.py", "import dray.cli"),
    (LAYERS, "helpers.py", UNLISTED),
    (CORE_LAYERS, "core/lifecycle/__init__.py", "import dray.core.scheduling"),
    (CORE_LAYERS, "core/model/__init__.py", "from dray.core import lifecycle"),
    (CORE_LAYERS, "core/misc.py", UNLISTED),
    (PURITY, "core/model/__init__.py", "import time"),
    (PURITY, "core/lifecycle/__init__.py", "import asyncio.events"),
    (PURITY, "core/lifecycle/__init__.py", "from os import path"),
    (PURITY, "core/scheduling/__init__.py", "def late():\n    import random"),
    (PURITY, "core/scheduling/__init__.py", "import logging as log"),
    (PURITY, "errors.py", "import datetime"),
    (NO_PICKLE, "hub/__init__.py", "import pickle"),
    (NO_PICKLE, "agent/__init__.py", "def late():\n    import cloudpickle"),
    (NO_PICKLE, "wire/__init__.py", "from pickle import loads"),
]


def climb(contract: dict[str, Any]) -> tuple[str, str, str]:
    """The lowest room of a package imports its highest one."""
    (package,) = contract["containers"]
    highest, lowest = (
        re.findall(r"\w+", layer)[0] for layer in (contract["layers"][0], contract["layers"][-1])
    )
    folder = package.removeprefix("dray.").replace(".", "/")
    is_room = f"{folder}/{lowest}/__init__.py" in SKELETON
    return (
        contract["name"],
        f"{folder}/{lowest}{'/__init__' if is_room else ''}.py",
        f"import {package}.{highest}",
    )


BREAKS += [climb(contract) for contract in ROOMS.values()]


def lint(folder: Path) -> tuple[int, dict[str, str], str]:
    """Exit code, verdict per contract, and all that was printed."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    verdicts = {
        name: verdict
        for line in output.splitlines()
        for name in CONTRACTS
        for verdict in ("KEPT", "BROKEN")
        if line.startswith(f"{name} {verdict}")
    }
    return done.returncode, verdicts, output


def make_skeleton(folder: Path, breaks: list[tuple[str, str, str]]) -> Path:
    shutil.copy(ROOT / "pyproject.toml", folder)
    texts = dict.fromkeys(SKELETON, "")
    # The ways through which a break of one module reaches another.
    texts["hub/__init__.py"] = "import dray.wire\n"
    texts["core/model/__init__.py"] = "import dray.errors\n"
    # The facade names what it loads late; that must not count as a way around the layers.
    texts["__init__.py"] = "def connect():\n    import dray.client\n"
    texts["wire/__init__.py"] = "import dray\n"
    for _, file, text in breaks:
        texts[file] = f"{texts.get(file, '')}{text}\n"
    for name, text in texts.items():
        path = folder / "src" / "dray" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Where every break was made: what is said of a contract. What is listed nowhere is told before any import."""
    imports, files = ([one for one in BREAKS if (UNLISTED in one[2]) == wanted] for wanted in (False, True))
    said = ""
    for breaks in (imports, files):
        code, verdicts, output = lint(make_skeleton(tmp_path_factory.mktemp("broken"), breaks))
        assert code != 0, output
        assert {name for name, verdict in verdicts.items() if verdict == "BROKEN"} == {
            one[0] for one in breaks
        }
        said += output.partition("Broken contracts")[2]
    parts = re.split(rf"^({'|'.join(map(re.escape, CONTRACTS))})$", said, flags=re.MULTILINE)
    return lambda contract: "".join(text for name, text in pairwise(parts) if name == contract)


def test_the_skeleton_keeps_them_before_it_is_broken(tmp_path: Path) -> None:
    code, verdicts, output = lint(make_skeleton(tmp_path, []))
    assert code == 0, output
    assert verdicts == dict.fromkeys(CONTRACTS, "KEPT"), output


def test_every_contract_is_broken_below() -> None:
    assert {contract for contract, _, _ in BREAKS} == set(CONTRACTS)


@pytest.mark.parametrize(("contract", "file", "text"), BREAKS)
def test_a_break_is_noticed(broken: Callable[[str], str], contract: str, file: str, text: str) -> None:
    module = "dray." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    named = module if text == UNLISTED else f"{module} -> {imported_by(text)} (l."
    assert named in broken(contract), broken(contract)


def imported_by(text: str) -> str:
    """The module that a break imports; of what is not dray, its package."""
    words = text.replace(",", " ").split()
    module = words[words.index("from" if "from" in words else "import") + 1]
    if not module.startswith("dray"):
        return module.partition(".")[0]
    return f"{module}.{words[-1]}" if "from" in words else module
