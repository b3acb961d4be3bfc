"""`python -m benchmarks [names] [--quick]`: run benchmarks, write their documents, renew the table."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.catalogue import CATALOGUE, load_measure
from benchmarks.cluster import raise_file_limit
from benchmarks.figures import Report
from benchmarks.machine_facts import gather_facts
from benchmarks.progress import tell
from benchmarks.table import render_rows, write_table

RESULTS = Path(__file__).with_name("results")


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="How fast dray is on this machine."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(CATALOGUE)}; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it runs, not how fast it is"
    )
    parser.add_argument(
        "--results", type=Path, help="folder for the documents; quick runs need one to keep them"
    )
    options = parser.parse_args(words)
    unknown = [name for name in options.names if name not in CATALOGUE]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}: there are {', '.join(CATALOGUE)}")
    return options


def run(name: str, quick: bool, machine: dict[str, object]) -> Report:
    """One benchmark, timed."""
    began, began_at = time.monotonic(), f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    figures = load_measure(name)(quick)
    command = f"python -m benchmarks {name}" + (" --quick" if quick else "")
    return Report(name, command, quick, began_at, round(time.monotonic() - began, 1), machine, figures)


def main(words: list[str]) -> int:
    options = parse_arguments(words)
    # Figures of tiny sizes must never stand in the table of the real ones.
    folder: Path | None = options.results or (None if options.quick else RESULTS)
    # As Ctrl-C does: an ended run must leave no hub and no worker behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise_file_limit()
    machine = gather_facts()
    failed = []
    for name in options.names or CATALOGUE:
        tell(f"{name} ...")
        try:
            report = run(name, options.quick, machine)
        except Exception:  # noqa: BLE001 - one broken benchmark must not cost the figures of the others
            traceback.print_exc()
            failed.append(name)
            continue
        print(f"{name} ({report.seconds:.0f} s)\n{render_rows(report)}", flush=True)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            document = msgspec.json.format(msgspec.json.encode(report), indent=2)
            (folder / f"{name}.json").write_bytes(document + b"\n")
            write_table(folder, CATALOGUE)
    if failed:
        tell(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
