"""A job of before submitted again: what of its spec is said anew, and which of its tasks.

A result never changes: what failed runs again as a new job, beside the record of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.core.model.units import join_indices

# Who asks, under which id, and what the first one waited for: all that is the new job's own. Nor does it belong to the
# template that the first one was made by: whoever submits it again may change what the template would not.
_OWN = ("id", "user_id", "after", "hold", "template", "params", "rendered")


def again_spec(spec: Mapping[str, Any], indices: Sequence[int] | None = None) -> dict[str, Any]:
    """The spec of a job's document, to be submitted again; with the tasks of these indices where some are given."""
    kept = {field: value for field, value in spec.items() if field not in _OWN}
    if indices is not None:
        limit = (spec.get("array") or {}).get("limit", 0)
        kept["array"] = {"indices": join_indices(sorted(indices)), "limit": limit}
    return kept
