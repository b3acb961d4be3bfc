"""How large what comes from outside may be: the types that every message and body is read by.

One module, so that a limit has one name and one number. A value out of bounds is refused where it is decoded, by its
place; nothing behind the codec has to ask again whether a number fits into a row, a sum or a clock. The bounds are
far above what honest peers send: they are there for the others. NaN and infinity are out of every bound.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

T = TypeVar("T")

MAX_COUNT = 1 << 20
MAX_BYTES = 1 << 60
# Whole numbers that every language and a double can hold.
MAX_STEP = (1 << 53) - 1
MAX_SPAN_S = 10**9
# An attempt's number is its epoch above 40 bits of count, in 63 bits: a later epoch has no room there.
LAST_EPOCH = (1 << 23) - 1

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Small = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Step = Annotated[int, Meta(ge=0, le=MAX_STEP)]
Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Nanoseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Offset = Annotated[int, Meta(ge=0, le=1 << 62)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Cards = Annotated[int, Meta(ge=0, le=65536)]
Epoch = Annotated[int, Meta(ge=0, le=LAST_EPOCH)]
TurnNumber = Annotated[int, Meta(ge=0, le=1 << 53)]
ExitCode = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 32) - 1)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SPAN_S)]
# Of all cores together, and of all cards.
CoreSeconds = Annotated[float, Meta(ge=0, le=10**12)]
# Bytes as a double: some peers write every number so.
ByteAmount = Annotated[float, Meta(ge=0, le=MAX_BYTES)]
Share = Annotated[float, Meta(ge=0, le=1)]
# Whole numbers stay whole where they are reported back as they came.
Cores = Annotated[int, Meta(ge=0, le=10**6)] | Annotated[float, Meta(ge=0, le=10**6)]
Gigabytes = Annotated[int, Meta(ge=0, le=10**9)] | Annotated[float, Meta(ge=0, le=10**9)]

Word = Annotated[str, Meta(max_length=64)]
# An id; a task's, with its index; a uid or an address. What an id may hold is checked where it is used.
IdText = Annotated[str, Meta(max_length=256)]
Line = Annotated[str, Meta(max_length=1024)]
Text64K = Annotated[str, Meta(max_length=64 << 10)]
# As much as a text frame holds: what is cut to size later.
Text1M = Annotated[str, Meta(max_length=1 << 20)]
Blob = Annotated[bytes, Meta(max_length=8 << 20)]

Few = Annotated[list[T], Meta(max_length=64)]
Some = Annotated[list[T], Meta(max_length=4096)]
Many = Annotated[list[T], Meta(max_length=65536)]
# By names such as labels and resources have.
FewNamed = Annotated[dict[Annotated[str, Meta(max_length=256)], T], Meta(max_length=64)]
ManyNamed = Annotated[dict[Annotated[str, Meta(max_length=256)], T], Meta(max_length=65536)]
