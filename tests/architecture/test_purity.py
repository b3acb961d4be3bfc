"""The purity check holds for the project and refuses every door to the outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "check_purity.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def plant(folder: Path, module: str, text: str) -> None:
    path = folder / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dray/core/model/records/job", "import time"),
        ("dray/core/model/records/job", "import os.path"),
        ("dray/core/model/records/job", "from random import random"),
        ("dray/core/model/records/job", "import uuid"),
        ("dray/core/model/records/job", "from datetime import datetime"),
        ("dray/core/lifecycle/apply", "def late():\n    import logging"),
        ("dray/core/lifecycle/apply", "from importlib import import_module"),
        ("dray/core/lifecycle/apply", "from ...hub import engine"),
        ("dray/core/scheduling/passes/planning", "import scipy"),
        ("dray/core/scheduling/passes/planning", "import numpy as np\nnp.random.default_rng()"),
        ("dray/core/scheduling/passes/planning", "from numpy import random"),
        ("dray/core/scheduling/passes/planning", "open('x')"),
        ("dray/core/scheduling/passes/planning", "__import__('time')"),
        ("dray/core/scheduling/passes/planning", "order = hash('a')"),
        ("dray/errors", "import sys\nsys.stderr.write('x')"),
        ("dray/agent/decide/machine", "import time"),
        ("dray/agent/decide/machine", "import asyncio"),
        ("dray/agent/decide/machine", "from dray.agent import driver"),
        ("dray/agent/decide/new/tasks", "import os"),
        ("dray/agent/supervisor", "import msgspec"),
        ("dray/agent/supervisor", "from dray.errors import DrayError"),
        ("dray/agent/supervisor", "from . import link"),
        ("dray/agent/supervisor/main", "import psutil"),
    ],
)
def test_a_door_to_the_outside_is_refused(tmp_path: Path, module: str, text: str) -> None:
    plant(tmp_path, module, text)
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{module}.py:" in done.stdout
    assert module.replace("/", ".") in done.stdout


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "dray/core/model/records/job",
            "from __future__ import annotations\nimport math\nimport numpy as np",
        ),
        ("dray/core/lifecycle/apply", "import msgspec\nfrom dray.core.model.records.job import Job"),
        ("dray/core/lifecycle/apply", "from ..model import job\nfrom . import events"),
        ("dray/agent/decide/machine", "from dray.wire.messages.worker import JobAssign"),
        ("dray/agent/supervisor", "import os, time, subprocess\nprint(open('x'))"),
        ("dray/hub/engine/engine", "import time, asyncio, random"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, module: str, text: str) -> None:
    plant(tmp_path, module, text)
    done = check(tmp_path)
    assert done.returncode == 0, done.stdout
