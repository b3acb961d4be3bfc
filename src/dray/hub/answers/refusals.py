"""Errors as every way into the hub tells them."""

from __future__ import annotations

from typing import Any

from dray import errors


def error_document(error: errors.DrayError) -> dict[str, Any]:
    """Spell an error in the documented shape."""
    problems = [{"where": problem.where, "what": problem.what} for problem in error.problems]
    body: dict[str, Any] = {"code": error.code, "message": error.message, "problems": problems}
    if isinstance(error, errors.TooManyRequests):
        # The client channel has no headers to say it in.
        body["retry_after_s"] = round(error.retry_after_s, 3)
    if isinstance(error, errors.NotLeader) and error.leader:
        body["leader"] = error.leader
    return {"error": body}


def internal_error(report_id: str = "") -> errors.InternalFault:
    """What a caller learns of a fault that nobody foresaw."""
    where = (
        f"`dray doctor` shows the report {report_id} to an admin" if report_id else "its log has the details"
    )
    return errors.InternalFault(f"the hub failed on this request; {where}, and nothing was promised")
