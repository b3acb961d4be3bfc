"""Bytecode that is made ahead is what pytest itself would make, and finds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, get_cache_dir
from tests import compiled


def test_tests_are_compiled_as_pytest_compiles_them(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    test, other = tmp_path / "test_one.py", tmp_path / "other.py"
    test.write_text("def test_it():\n    assert 1 + 1 == 2\n")
    other.write_text("TWO = 2\n")
    compiled._compile(pytestconfig, [test, other])
    assert _read_pyc(test, get_cache_dir(test) / f"test_one{PYC_TAIL}") is not None
    assert Path(importlib.util.cache_from_source(str(other))).exists()
