"""Check the dashboard's own code: types, format and lint, tests of what needs no browser, and its lock of packages.

Types of the API are written anew from the hub's code, into a file that no repository holds.
The lock names no address, holds a hash for every package and each package of other platforms: the npm of one machine
leaves those out in silence where its registry lacks them, and the next machine could not build.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hatch_build  # noqa: E402 - a script beside the project's metadata, found after the line above

LOCKED = ("web", "tests/browser")


def judge_lock(folder: str) -> Iterator[str]:
    packages = json.loads((ROOT / folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, package in packages.items():
        if name and "integrity" not in package:
            yield f"{folder}/package-lock.json: {name} has no hash: make the lock anew with npm install"
        if "resolved" in package:
            yield f"{folder}/package-lock.json: {name} names an address: see .npmrc beside it"
        for other in package.get("optionalDependencies", {}):
            if f"node_modules/{other}" not in packages:
                yield f"{folder}/package-lock.json: {other} of {name} is missing: take a version that has it"


def main() -> int:
    faults = [fault for folder in LOCKED for fault in judge_lock(folder)]
    print("".join(f"{fault}\n" for fault in faults), end="")
    try:
        node, env = hatch_build.fetch(hatch_build.WEB)
    except hatch_build.BuildFailed as failure:
        print(failure)
        return 1
    hatch_build.TYPES.write_text(importlib.import_module("generate_web_types").text())
    packages = hatch_build.WEB / "node_modules"
    tests = sorted(str(path) for path in (hatch_build.WEB / "test").glob("*.test.ts"))
    failed = bool(faults)
    commands: tuple[tuple[str | Path, ...], ...] = (
        (packages / "typescript" / "bin" / "tsc", "--project", "."),
        (
            packages / "@biomejs" / "biome" / "bin" / "biome",
            "check",
            "--error-on-warnings",
            *sys.argv[1:],
            ".",
        ),
        ("--test", *tests),
    )
    for command in commands:
        done = subprocess.run(
            [node, *command], cwd=hatch_build.WEB, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            failed = True
            print(done.stdout + done.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
