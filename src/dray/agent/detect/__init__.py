"""What this machine has: cores, memory, cards. `detect()` looks and never raises; what it could not see is a note.

Importing this package must stay cheap and must not touch a driver: the probes load on first use.
"""

from __future__ import annotations

from dray.agent.detect.machine import Detected, detect
from dray.agent.detect.names import mask_name, shorten_model

__all__ = ["Detected", "detect", "mask_name", "shorten_model"]
