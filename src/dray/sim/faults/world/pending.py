"""A simulated client's stand-in for a future: hears one answer, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Pending:
    """A future for one answer."""

    def __init__(self, heard: Callable[[Any, BaseException | None], None]) -> None:
        self._heard, self._done = heard, False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._done = True
        self._heard(result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._heard(None, exception)
