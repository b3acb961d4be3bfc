"""Find what belongs to one machine and not to the project: local paths, package indexes, download addresses.

Looks at every file that git tracks or would track in the given checkout (default: this one).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Written so that no pattern matches its own line.
PATTERNS = {
    "a path of one machine": re.compile(r"""(?:^|[\s"'`(=:,\[<])/(?:work|farm)/"""),
    "the address of a package index": re.compile(r"/simple[/]"),
    "the address of a package": re.compile(r"(?:https?|file):/[/]\S+[.](?:whl|tar[.]gz)"),
    "a package index option": re.compile(r"--(?:extra-)?index-url[\s=]|--find-links[\s=]"),
}


def listed_files(root: Path) -> list[Path]:
    # A checkout that belongs to another user (a container's volume) is read, never run, so it is safe here.
    git = ("git", "-c", f"safe.directory={root}", "-C", str(root))
    listing = subprocess.run(
        (*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        raise SystemExit(f"{root} is no git checkout, so there is no list of files: {listing.stderr.strip()}")
    return sorted({root / name for name in listing.stdout.split("\0") if name})


def findings(root: Path) -> Iterator[str]:
    for path in listed_files(root):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            for name, pattern in PATTERNS.items():
                if pattern.search(line):
                    yield f"{path.relative_to(root)}:{number}: {name}: {line.strip()[:100]}"


def main() -> int:
    found = list(findings(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
