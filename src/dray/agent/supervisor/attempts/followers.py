"""Attempts that wait for the place of another: who comes after whom, in rows of any length.

Knows ids alone. Whoever leaves a row before its turn leaves no gap.
"""

from __future__ import annotations


class Followers:
    __slots__ = ("_ahead", "_next")

    def __init__(self) -> None:
        self._next: dict[str, str] = {}
        self._ahead: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._ahead)

    def __contains__(self, uid: str) -> bool:
        """Whether it waits."""
        return uid in self._ahead

    def join(self, uid: str, ahead: str) -> None:
        """Wait behind another, or at the end of the row that there is behind it."""
        while ahead in self._next:
            ahead = self._next[ahead]
        self._next[ahead], self._ahead[uid] = uid, ahead

    def leave(self, uid: str) -> str:
        """One has ended: who waited for its place and has it now; nobody where it was still waiting itself."""
        after = self._next.pop(uid, "")
        ahead = self._ahead.pop(uid, "")
        if after:
            del self._ahead[after]
        if not ahead:
            return after
        del self._next[ahead]
        if after:
            self._next[ahead], self._ahead[after] = after, ahead
        return ""
