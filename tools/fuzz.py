"""Feed dray what nobody should send it, and say what broke: `fuzz.py --codec 5000000 --live 200000 --http`.

Three parts, each asked for by its flag: readers of frames, specs and texts in this process; sessions of a running hub;
every route of the HTTP API. Ends with 1 when anything was found. `--save` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"


def main(argv: list[str]) -> int:
    """Run the parts that were asked for; without any, a short run of all of them."""
    if str(ROOT) not in sys.path:
        # A script sees its own folder only, and the parts of this one are named from the root.
        sys.path.insert(0, str(ROOT))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    from benchmarks.machine_facts import gather_facts

    options = _read_options(argv)
    report: dict[str, Any] = {
        "command": f"python tools/fuzz.py {' '.join(argv)}".strip(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": gather_facts(),
    }
    for name, run in _parts(options).items():
        print(f"{name}: begins", flush=True)
        report[name] = run()
        _tell(name, report[name])
    found = sum(
        len(part["findings"]) for part in report.values() if isinstance(part, dict) and "findings" in part
    )
    if options.save:
        _save(Path(options.save), report)
    print(f"{found} findings" if found else "nothing found")
    return 1 if found else 0


def _read_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "--codec", type=int, default=0, metavar="N", help="read N spoilt inputs in this machine's cores"
    )
    parser.add_argument(
        "--live", type=int, default=0, metavar="N", help="send N spoilt frames to a running hub"
    )
    parser.add_argument("--http", action="store_true", help="ask every route of the HTTP API")
    parser.add_argument("--http-s", type=int, default=240, metavar="S", help="how long to ask (default 240)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", nargs="?", const=str(RESULT), help="merge the figures into a file")
    options = parser.parse_args(argv)
    if not (options.codec or options.live or options.http):
        options.codec, options.live, options.http, options.http_s = 200_000, 10_000, True, 30
    return options


def _parts(options: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    from tools.fuzz_codec import run_codec
    from tools.fuzz_http import run_http
    from tools.fuzz_live import run_live

    parts: dict[str, Callable[[], dict[str, Any]]] = {}
    if options.codec:
        parts["codec"] = lambda: run_codec(options.codec, options.seed, options.processes)
    if options.live:
        parts["live"] = lambda: run_live(options.live, options.seed)
    if options.http:
        parts["http"] = lambda: run_http(options.http_s, options.seed)
    return parts


def _tell(name: str, part: dict[str, Any]) -> None:
    print(json.dumps({key: value for key, value in part.items() if key != "findings"}, indent=2))
    for what, found in part["findings"].items():
        print(f"{name}: FOUND {what}: {found.get('fault', '')}\n{json.dumps(found, indent=2)[:4000]}")


def _save(path: Path, report: dict[str, Any]) -> None:
    """Keep the parts of earlier runs that were not run this time, each with its own command and machine."""
    facts = {key: report.pop(key) for key in ("command", "at", "machine")}
    known = json.loads(path.read_text()) if path.exists() else {}
    known.update({name: {**facts, **part} for name, part in report.items()})
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
