"""How a job stands, as a value: attributes for people who type, items for programs that iterate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dray.core.model.records.records import JobState

JobDocument = dict[str, Any]


class Status(Mapping[str, Any]):
    """A job's document at one moment. `status.state` and `status["state"]` are the same `JobState`."""

    def __init__(self, document: JobDocument, value: bytes = b"") -> None:
        self._document = {**document, "state": JobState(document["state"])}
        self.value = value

    @property
    def id(self) -> str:
        return str(self._document["id"])

    @property
    def state(self) -> JobState:
        return JobState(self._document["state"])

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.state is JobState.SUCCEEDED

    @property
    def reason(self) -> str:
        """Why it waits, in one line; empty unless it is pending."""
        return str(self._document.get("reason", ""))

    @property
    def exit_code(self) -> int | None:
        code: int | None = self._document.get("exit_code")
        return code

    @property
    def exit_class(self) -> str:
        return str(self._document.get("exit_class", ""))

    @property
    def error(self) -> str:
        return str(self._document.get("error", ""))

    @property
    def verdict(self) -> JobDocument | None:
        """Why it did not succeed: `kind`, `title`, `evidence` and `step`, the one thing to do next; None otherwise."""
        found: JobDocument | None = self._document.get("verdict")
        return found

    @property
    def worker(self) -> str:
        """Where its newest attempt ran; empty before the first and for arrays."""
        return str(self._document.get("worker", ""))

    def __getitem__(self, key: str) -> Any:
        return self._document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __repr__(self) -> str:
        ending = f", exit_code={self.exit_code}" if self.exit_code is not None else ""
        error = f", error={self.error!r}" if self.error else ""
        return f"Status(id={self.id!r}, state={self.state.value!r}{ending}{error})"
