"""Hooks of schemathesis for a run against a real hub: ids that exist, and waits that end.

Loaded by schemathesis itself (`SCHEMATHESIS_HOOKS`). Without ids that exist nearly every answer would be a 404, and
the documents would never be compared with their schemas. Only values that are valid already are replaced, so that
what was meant to be refused still is.
"""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

import schemathesis

WAIT_S = "0.05"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
KNOWN: dict[str, list[str]] = json.loads(os.environ.get("DRAY_FUZZ_IDS", "{}"))
_rng = random.Random(0)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Lead most calls to something that is there, and let none wait for long."""
    kind = case.operation.path.split("/")[3] if case.operation.path.startswith("/api/v1/") else ""
    for name, value in (case.path_parameters or {}).items():
        known = KNOWN.get(kind)
        if known and isinstance(value, str) and ID.fullmatch(value) and _rng.random() < 0.7:
            case.path_parameters[name] = _rng.choice(known)
    query = case.query or {}
    if _is_number(query.get("wait_s")):
        query["wait_s"] = WAIT_S
    if str(query.get("follow")).lower() in ("1", "true"):
        query["follow"] = "0"


def _is_number(value: Any) -> bool:
    """Whether this is a wait that the hub would take."""
    try:
        return 0 <= float(value) <= 300
    except (TypeError, ValueError):
        return False
