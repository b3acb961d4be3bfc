"""What runs inside Redis: each script changes the keys of one group together, and only for the history that is newest.

The fence is the pair (epoch, seq) in the hash of numbers. A writer of an older epoch changes nothing. Within an epoch
changes from turn `base` to turn `seq` are laid over what is there if that is as of a turn between the two: members
that changed since are set to how they are now, all others did not change. After each write both collections are counted
against what they should hold, so that a key which was flushed or evicted under the writer is noticed with the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dray.hub.mirror.documents import AS_OF_FROM, AS_OF_TO
from dray.hub.mirror.groups import Changes, Group, Part, Value

# Answers of the scripts.
DONE, FENCED, GAP, NEWER, DIFFERS = b"done", b"fenced", b"gap", b"newer", b"differs"
# Seconds that an unfinished collection stays, should its writer die.
DRAFT_S = 600

_SHARED = """
local function each(verb, key, from, count)
  local upto = from + count - 1
  while from <= upto do
    local to = math.min(from + 999, upto)
    redis.call(verb, key, unpack(ARGV, from, to))
    from = to + 1
  end
  return from
end
local function there()
  local told = redis.call('HMGET', STATS, 'epoch', 'seq')
  return tonumber(told[1] or '-1'), tonumber(told[2] or '-1')
end
local function change(keys, place)
  for which = 1, 2 do
    local at = 5 + (which - 1) * 6
    place = each(ARGV[at + 1], keys[which], place, tonumber(ARGV[at + 4]))
    place = each(ARGV[at], keys[which], place, tonumber(ARGV[at + 3]))
  end
  return place
end
local function differs(keys)
  for which = 1, 2 do
    local at = 5 + (which - 1) * 6
    if redis.call(ARGV[at + 2], keys[which]) ~= tonumber(ARGV[at + 5]) then return true end
  end
  return false
end
local function tell(place)
  local stats, gone, events = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19])
  place = each('HDEL', STATS, place, gone)
  place = each('HSET', STATS, place, stats)
  for number = 1, events do
    redis.pcall('XADD', EVENTS, 'MAXLEN', '~', ARGV[20], ARGV[place], 'type', ARGV[place + 1], 'data', ARGV[place + 2])
    place = place + 3
  end
end
local epoch, base, seq, last = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local at_epoch, at_seq = there()
if at_epoch > epoch then return 'fenced' end
"""

# KEYS: both collections, numbers, events.
_APPLY = f"""
local STATS, EVENTS = KEYS[3], KEYS[4]
{_SHARED}
if at_epoch < epoch or at_seq < base then return 'gap' end
if at_seq > seq then return 'newer' end
tell(change(KEYS, 21))
if not last then return 'done' end
redis.call('HSET', STATS, 'epoch', epoch, 'seq', ARGV[3])
if differs(KEYS) then return 'differs' end
return 'done'
"""

# KEYS: both collections, numbers, events, both drafts.
_FINISH = f"""
local STATS, EVENTS = KEYS[3], KEYS[4]
{_SHARED}
if at_epoch == epoch and at_seq > seq then return 'newer' end
local drafts = {{KEYS[5], KEYS[6]}}
local place = change(drafts, 21)
if differs(drafts) then return 'differs' end
for which = 1, 2 do
  redis.call('UNLINK', KEYS[which])
  if redis.call('EXISTS', drafts[which]) == 1 then
    redis.call('PERSIST', drafts[which])
    redis.call('RENAME', drafts[which], KEYS[which])
  end
end
redis.call('DEL', STATS)
tell(place)
redis.call('HSET', STATS, 'epoch', epoch, 'seq', ARGV[3])
return 'done'
"""

# KEYS: documents. ARGV: seconds that they stay, then the documents.
_DOCUMENTS = f"""
local kept = 0
for number, key in ipairs(KEYS) do
  local fresh = ARGV[number + 1]
  if redis.call('GETRANGE', key, {AS_OF_FROM}, {AS_OF_TO}) <= string.sub(fresh, {AS_OF_FROM + 1}, {AS_OF_TO + 1}) then
    redis.call('SET', key, fresh, 'EX', ARGV[1])
    kept = kept + 1
  end
end
return kept
"""

# KEYS: the lock. ARGV: epoch, rank, nonce, words, milliseconds. A later epoch and a lower rank go before.
_LOCK = """
local held = redis.call('GET', KEYS[1])
if held then
  local epoch, rank, nonce = string.match(held, '^(%d+) (%d+) (%S+)')
  if epoch and nonce ~= ARGV[3] then
    local theirs, mine = tonumber(epoch), tonumber(ARGV[1])
    if theirs > mine or (theirs == mine and tonumber(rank) <= tonumber(ARGV[2])) then return held end
  end
end
redis.call('SET', KEYS[1], table.concat({ARGV[1], ARGV[2], ARGV[3], ARGV[4]}, ' '), 'PX', ARGV[5])
return ''
"""

# KEYS: the lock. ARGV: nonce.
_UNLOCK = """
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^%d+ %d+ (%S+)') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Script:
    """One script, by its text and by its digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Redis names scripts by this digest; nothing is kept secret or safe by it.
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[str], arguments: Sequence[Value]) -> tuple[Value, ...]:
        """The command that runs it."""
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


APPLY, FINISH, DOCUMENTS = Script(_APPLY), Script(_FINISH), Script(_DOCUMENTS)
LOCK, UNLOCK = Script(_LOCK), Script(_UNLOCK)
SCRIPTS = (APPLY, FINISH, DOCUMENTS, LOCK, UNLOCK)


class Stamp:
    """As of when something is written, and what it comes to: the numbers, and how much both collections hold."""

    def __init__(
        self, epoch: int, base: int, seq: int, stats: dict[str, int | str], counts: tuple[int, int]
    ) -> None:
        self.epoch, self.base, self.seq, self.stats, self.counts = epoch, base, seq, stats, counts


def spell_part(group: Group, part: Part, stamp: Stamp, most_events: int) -> list[Value]:
    """The arguments of `APPLY` and `FINISH`."""
    head: list[Value] = [stamp.epoch, stamp.base, stamp.seq, int(part.last)]
    body: list[Value] = []
    for kind, changes, expected in zip(group.kinds, part.changes, stamp.counts, strict=True):
        gone = [member for member, value in changes.items() if value is None]
        fresh = spell_members(kind.add, changes)
        head += (kind.add, kind.remove, kind.size, len(fresh), len(gone), expected)
        body += gone
        body += fresh
    told, dropped = group.list_stats(stamp.stats) if part.last else ([], [])
    head += (len(told), len(dropped), len(part.events), most_events)
    for event in part.events:
        body += event
    # Events come after the numbers.
    cut = len(body) - 3 * len(part.events)
    return [*head, *body[:cut], *dropped, *told, *body[cut:]]


def spell_members(verb: str, changes: Changes) -> list[Value]:
    """What is added to a collection, in the order that its command wants."""
    fresh: list[Value] = []
    for member, value in changes.items():
        if value is None:
            continue
        if verb == "ZADD":
            fresh += (value, member)
        elif verb == "HSET":
            fresh += (member, value)
        else:
            fresh.append(member)
    return fresh
