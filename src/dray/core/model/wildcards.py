"""Names with wildcards, as people write them: `*` stands for any text, `?` for one character, all else for itself.

No sets of characters: a name may hold brackets, and shells and databases disagree about them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_WILD = {"*": ".*", "?": "."}


def match_name(pattern: str) -> Callable[[str], bool]:
    """A test for names of this pattern."""
    if not any(sign in pattern for sign in _WILD):
        return pattern.__eq__
    spelled = "".join(_WILD.get(sign) or re.escape(sign) for sign in pattern)
    matcher = re.compile(spelled, re.DOTALL)
    return lambda name: matcher.fullmatch(name) is not None
