"""What all workers of the suite import, compiled ahead in a fresh clone: each of them would compile all of it by itself
at the same moment as the others, which takes longer than to collect the tests.

Tests are compiled as pytest compiles and finds them, by functions of its own that are not meant for others: where those
are no more, the workers compile as they always did, and only time is lost.
"""

from __future__ import annotations

import compileall
import contextlib
import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PRODUCT = TESTS.parent / "src" / "dray"


def compile_ahead(config: pytest.Config, cores: int) -> None:
    """Do it, in as many processes as there are cores, where nobody has before."""
    if (TESTS / "wire" / "__pycache__").is_dir() or os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return
    sources = [*sorted(TESTS.rglob("*.py")), *sorted(PRODUCT.rglob("*.py"))]
    children: list[int] = []
    for part in range(1, cores):
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                _compile(config, sources[part::cores])
            os._exit(0)
        children.append(pid)
    with contextlib.suppress(Exception):
        _compile(config, sources[::cores])
    for pid in children:
        os.waitpid(pid, 0)


def _compile(config: pytest.Config, sources: list[Path]) -> None:
    from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

    for source in sources:
        if source.name.startswith("test_") or source.name == "conftest.py":
            stat, code = _rewrite_test(source, config)
            folder = get_cache_dir(source)
            folder.mkdir(exist_ok=True)
            _write_pyc(config.stash[assertstate_key], code, stat, folder / f"{source.stem}{PYC_TAIL}")
        else:
            compileall.compile_file(source, quiet=2)
