"""Whether scores that are kept from pass to pass are what scoring everybody anew would give.

Asks for them as a pass would and throws the answers away. Knows nothing of what a score should be.
"""

from __future__ import annotations

import numpy as np

from dray.core.lifecycle.state.state import State
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.placement.candidates import score_all
from dray.core.scheduling.placement.kept_keys import is_plain, keep_keys
from dray.core.scheduling.placement.placer import make_placer
from dray.core.scheduling.placement.scorers import Wish


def find_misjudged(state: State) -> list[str]:
    """Shapes whose workers stand otherwise than they should; each is asked for once."""
    found, asked = [], set()
    for job in state.jobs.values():
        placer = make_placer(state, Rooms(state))
        key, asks = (job.shape, placer.flavour(job) if placer.personal else ""), state.asks(job.shape)
        if key not in placer.rooms.memory.standings or key in asked or not is_plain(asks):
            continue
        asked.add(key)
        wish = Wish(state, asks[0], job)
        kept, anew = keep_keys(placer, *key, wish), score_all(make_placer(state, Rooms(state)), wish)
        if not np.array_equal(kept, anew):
            found.append(f"workers stand for {job.id} as {kept.tolist()}, and should as {anew.tolist()}")
    return found
