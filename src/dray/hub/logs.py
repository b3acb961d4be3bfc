"""The hub's own log: one JSON object per line, or plain lines for people. Secrets never go in."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever the call passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _worth_telling(record: logging.LogRecord) -> bool:
    """What the server library says, less what is no error here.

    It tells of bad bytes from a peer with a whole traceback, each time: one line says it all. And it calls it an error
    when a peer goes away, or the hub stops, in the middle of an upgrade.
    """
    if "without completing handshake" in record.getMessage():
        return False
    if record.getMessage().startswith("Invalid"):
        record.exc_info = record.exc_text = None
    return True


def set_up_logging(as_json: bool, handler: logging.Handler, level: int = logging.INFO) -> None:
    """Send dray's log, and what the server library has to say, to one place in one form."""
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    root = logging.getLogger("dray")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
    server = logging.getLogger("uvicorn.error")
    server.handlers[:] = [handler]
    server.filters[:] = [_worth_telling]
    server.propagate = False
