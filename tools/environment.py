"""Make `.venv` hold exactly what the project pins, or return at once when it already does.

Runs on the bare interpreter, before anything is installed, so it knows the standard library alone. A stamp inside
`.venv` names the pinned lists it was filled from; it is written last, so an interrupted set-up is taken up again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".dray-stamp"
INPUTS = ("pyproject.toml", "requirements/uv.txt", "requirements/dev.txt", "tools/environment.py")
OLDEST = (3, 11)


class SetupFailed(Exception):
    """A step of the set-up did not work; the message says what to do."""


def fingerprint() -> str:
    """What `.venv` depends on: the pinned lists, the project's metadata and the place of this checkout."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint()


def run(step: str, *command: str | Path, retries: int = 0) -> None:
    """One step; its output shows only when it fails."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode == 0:
        return
    if not retries:
        raise SetupFailed(f"{done.stdout.rstrip()}\n\n{step} failed (exit code {done.returncode}, see above)")
    print(f"{step}: failed, trying once more", file=sys.stderr)
    time.sleep(1)
    run(step, *command, retries=retries - 1)


def works(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    """A venv whose interpreter has gone (an upgraded or removed Python) is made anew; a sound one is kept."""
    if works(PYTHON, "-m", "pip", "--version"):
        if not works(PYTHON, "-c", f"import sys; sys.exit(sys.version_info < {OLDEST})"):
            raise SetupFailed(f"{VENV} holds a Python older than 3.11: remove that folder and try again")
        return
    try:
        # Not the interpreter inside the folder that is about to be cleared.
        base = getattr(sys, "_base_executable", sys.executable)
        run("python -m venv", base, "-m", "venv", "--clear", VENV)
    except SetupFailed as failure:
        hint = "on Debian and Ubuntu venv is a package of its own: apt install python3-venv"
        raise SetupFailed(f"{failure}\n{hint}") from None


def fill_venv() -> None:
    uv = VENV / "bin" / "uv"
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run("installing uv", *pip, "--require-hashes", "-r", "requirements/uv.txt", retries=1)
    install = (uv, "pip", "install", "--quiet", "--python", PYTHON)
    run("installing packages", *install, "--require-hashes", "-r", "requirements/dev.txt", retries=1)
    # Without isolation the build uses the hatchling pinned above and needs no network.
    run("installing dray", *install, "--no-deps", "--no-build-isolation", "--offline", "--editable", ".")


def main() -> int:
    if is_current():
        return 0
    started = time.monotonic()
    # Two verbs may start at once; the folder itself serves as the lock, so nothing is left behind.
    lock = os.open(ROOT / "requirements", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if is_current():
        return 0
    print("setting up .venv ...", file=sys.stderr, flush=True)
    try:
        make_venv()
        STAMP.unlink(missing_ok=True)
        fill_venv()
    except SetupFailed as failure:
        print(f"./dev: {failure}", file=sys.stderr)
        return 1
    STAMP.write_text(fingerprint())
    print(f"setting up .venv ... done in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
