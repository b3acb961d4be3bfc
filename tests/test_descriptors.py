"""Daemons may open as many files as the system lets them; what they start gets what they found."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, subprocess, sys
from dray.descriptors import file_limit, limits_as_found, raise_file_limit

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
raise_file_limit()
own = file_limit()
with limits_as_found():
    child = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True).stdout.strip()
print(own > 200 and own == file_limit(), child)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_the_limit_is_raised_here_and_kept_for_what_is_started() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "200"]
