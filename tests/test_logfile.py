"""A log that is a file of its own: full ones are put aside, the oldest goes, and nothing that is printed is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import logging, os, sys
from pathlib import Path
from dray.logfile import make_handler

log = logging.getLogger("t")
log.addHandler(make_handler(Path(sys.argv[1]), 1000, 2))
log.setLevel(logging.INFO)
for number in range(100):
    log.info("line %03d %s", number, "x" * 40)
print("printed", flush=True)
os.write(2, b"written\\n")
raise SystemExit("the end")
"""


def test_full_files_are_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "log" / "t.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("", "")
    files = [path, path.with_name("t.log.1"), path.with_name("t.log.2")]
    assert sorted(path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size < 1100 for file in files)
    whole = "".join(file.read_text() for file in reversed(files))
    assert whole.splitlines()[-4:] == [f"line 099 {'x' * 40}", "printed", "written", "the end"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_hub_takes_its_log_over_and_rotates_it(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    path = tmp_path / "hub.log"
    old = "old\n" * 20_000
    path.write_text(old)
    # Far more than the hub says itself: a second file put aside would push the old one out.
    settings = {"DRAY_HUB_LOG_FILE_BYTES": "64K", "DRAY_HUB_LOG_FILES": "1"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dray.cli.main",
            "hub",
            *("--home", str(tmp_path), "--port", "0", "--log-file", str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if not name.startswith("DRAY_")} | settings,
        text=True,
    )
    try:
        wait_until(lambda: "ready http" in text_of(path) or process.poll() is not None, timeout_s=60)
        process.terminate()
        assert process.communicate(timeout=60)[0] == ""
    finally:
        process.kill()
        process.wait()
    assert path.with_name("hub.log.1").read_text() == old


def text_of(path: Path) -> str:
    """What a log holds now; between one file and the next there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""
