"""Numbers about all workers that are kept from pass to pass: only workers that changed are looked at again.

Knows nothing of what the numbers mean. The surprising rule: a book that has not been read for so long that the list of
changes no longer reaches back is written anew, whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dray.core.lifecycle.state.columns import Columns, Numbers
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.placement.scorers import Sight

MOST_BOOKS = 512


class Book:
    """One row of numbers per worker, and how far the list of changed workers was read."""

    def __init__(self) -> None:
        self.rows: Numbers = np.zeros(0, dtype=np.int64)
        self.read = -1


class Books:
    """A book per kind of ask, as many as are worth keeping."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._books: dict[tuple[int, ...], Book] = {}

    def of(self, ask: Ask) -> Book:
        """The book of all asks that want the same numbers; what class of worker they want is not in it."""
        key = (ask.cpu_milli, ask.gpus, ask.gpu_milli, ask.vram_each_bytes, ask.vram_total_bytes)
        book = self._books.get(key)
        if book is None:
            if len(self._books) >= MOST_BOOKS:
                self._books.clear()
            book = self._books[key] = Book()
        return book

    def follow(self, book: Book, sight: Sight, look: Callable[[Sight], Numbers]) -> Numbers:
        """The numbers of all workers as the pass found them."""
        columns = self._columns
        changed = columns.changes_since(book.read)
        if len(book.rows) != columns.count or changed is None:
            book.rows = look(sight)
        elif changed:
            rows = np.unique(np.array(changed, dtype=np.intp))
            book.rows[rows] = look(Sight(sight.rooms, rows))
        book.read = columns.changes_read
        return book.rows
