"""The statements, held against what an implementation itself answers and shows, call by call.

Nothing here knows what the model would have done: only the tokens of the requests, what was asked, and the
state before and after. A field that is hidden is not looked at, and what it would have shown is not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from slotproof.impl.ledger import Entry, Status
from slotproof.impl.protocol import (
    Allocate,
    CacheBlocks,
    Call,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)
from slotproof.proofs.gate.compare import USAGE_TOLERANCE, Difference, difference
from slotproof.proofs.traces.trace import usage_of


class Content(NamedTuple):
    """What a key stands for: all tokens up to the end of its block, which says its position too."""

    tokens: tuple[int, ...]
    salt: int
    lora: int


class Made(NamedTuple):
    """A call that was made: what was asked, answered and shown."""

    call: Call
    result: Result
    before: Snapshot
    after: Snapshot
    entries: dict[int, Entry]
    """The ledger after it."""
    computed: int = 0
    """`allocate`: tokens that the request had computed before it."""


class Consistency:
    """Watches one allocator.

    Args:
        config: Its configuration.
        hidden: Fields of results and snapshots that it does not show.
    """

    def __init__(self, config: Config, hidden: frozenset[str]) -> None:
        self._config = config
        self._hidden = hidden
        self._contents: dict[Any, Content] = {}

    def state(self, s: Snapshot) -> list[Difference]:
        """What is wrong with a state by itself."""
        return list(self._state(s))

    def call(self, made: Made) -> list[Difference]:
        """What is wrong with a call, and with the state that it led to."""
        found = list(self._state(made.after))
        if found:
            return found
        found += self._tables(made)
        found += self._keys(made)
        call = made.call
        if isinstance(call, Allocate):
            found += self._granted(made, call) if made.result.granted else self._refused(made)
        elif isinstance(call, TakeNewBlockIds) and self._shows("to_zero"):
            if sorted(made.result.new_blocks) != sorted(made.before.to_zero):
                found.append(difference("result.new_blocks", made.before.to_zero, made.result.new_blocks))
            if made.after.to_zero:
                found.append(difference("to_zero", "nothing, it was taken", made.after.to_zero))
        return found

    def _shows(self, *fields: str) -> bool:
        return self._hidden.isdisjoint(fields)

    def _state(self, s: Snapshot) -> Iterator[Difference]:
        blocks = self._config.num_blocks
        for field in ("ref_cnt", "hashes"):
            if self._shows(field) and len(getattr(s, field)) != blocks:
                yield difference(field, f"{blocks} blocks", f"{len(getattr(s, field))} blocks")
                return
        lists = {f: getattr(s, f) for f in ("free_queue", "to_zero") if self._shows(f)}
        if self._shows("tables"):
            lists |= {f"tables[{r}]": table for r, table in s.tables.items()}
        for field, listed in lists.items():
            strange = [b for b in listed if not 0 <= b < blocks]
            if strange:
                yield difference(field, f"blocks 0 to {blocks - 1}", f"block {strange[0]}")
                return
        for field in ("free_queue", "to_zero"):
            if 0 in lists.get(field, ()):
                yield Difference(field, "no null block", "block 0 in it", "null-block")
        yield from self._partition(s)
        if self._shows("hashes") and s.hashes[0] is not None:
            yield Difference("hashes[0]", "no key for the null block", "a key", "null-block")
        if self._shows("usage", "free_queue"):
            usage = usage_of(blocks, len(s.free_queue))
            if not abs(usage - s.usage) <= USAGE_TOLERANCE:  # a NaN differs too
                yield Difference("usage", f"{usage:g}", f"{s.usage:g}", "usage")

    def _partition(self, s: Snapshot) -> Iterator[Difference]:
        """Every block but the null block is free or held, and its references are the entries that hold it."""
        free = Counter(s.free_queue)
        holders = _holders(s)
        for block in range(1, self._config.num_blocks):
            entries = len(holders.get(block, ()))
            references = s.ref_cnt[block] if self._shows("ref_cnt") else entries
            if self._shows("ref_cnt", "tables") and references != entries:
                yield Difference(
                    f"ref_cnt[{block}]", f"{entries}, by the table entries", str(references), "ref-count"
                )
            if not self._shows("free_queue") or not (self._shows("ref_cnt") or self._shows("tables")):
                continue
            held = bool(references or entries)
            if free[block] and held:
                r = holders[block][0][0] if entries else None
                whose = (
                    "referenced" if r is None else f"in request {r}'s table: the next taker writes over it"
                )
                yield Difference(f"block {block}", "free or held", f"free, and {whose}", "free-count")
            elif free[block] > 1:
                yield Difference(f"block {block}", "once in the free queue", "twice in it", "free-count")
            elif not free[block] and not held:
                yield Difference(f"block {block}", "free or held", "neither: it is lost", "free-count")

    def _tables(self, made: Made) -> Iterator[Difference]:
        """A call leaves the tables of others alone, and of its own takes only what is out of the window."""
        if not self._shows("tables"):
            return
        call, before, after = made.call, made.before.tables, made.after.tables
        own = getattr(call, "request", None)
        gone = isinstance(call, Preempt | Finish)
        for r in sorted({*before, *after}):
            old, new = before.get(r, ()), after.get(r, ())
            if r == own and gone:
                if new:
                    yield difference(f"tables[{r}]", "no table, its blocks are free", new)
                continue
            grows = r == own and isinstance(call, Allocate) and made.result.granted
            releases = r == own and isinstance(call, Allocate | RemoveSkipped)
            skipped = self._skipped(made.entries[r].settled) if releases and r in made.entries else 0
            kept = all(
                b == a or (b == 0 and i < skipped) for i, (a, b) in enumerate(zip(old, new, strict=False))
            )
            if not kept or len(new) < len(old) or (len(new) > len(old) and not grows):
                statement = "refusal-leaves-no-trace" if not made.result.granted else ""
                yield Difference(f"tables[{r}]", f"{old}, as before", str(new), statement)
        for r, entry in made.entries.items():
            for i in range(self._skipped(entry.settled), len(after.get(r, ()))):
                if after[r][i] == 0:
                    got = f"the null block, though token {entry.settled} attends to it"
                    yield Difference(f"tables[{r}][{i}]", "a block", got, "window-kept")
                    return

    def _keys(self, made: Made) -> Iterator[Difference]:
        """Which blocks have got keys, and lost them; a key is of one content, and of final tokens."""
        if not self._shows("hashes"):
            return
        call, old, new = made.call, made.before.hashes, made.after.hashes
        fresh = [b for b in range(1, len(new)) if new[b] is not None and new[b] != old[b]]
        publishes = isinstance(call, CacheBlocks) or (isinstance(call, Allocate) and made.result.granted)
        if fresh and not publishes:
            yield difference(f"hashes[{fresh[0]}]", "no new key by this call", "a key")
        if isinstance(call, EvictBlocks):
            for b in range(1, len(new)):
                if (b in call.blocks or old[b] is None) != (new[b] is None):
                    expected = "no key" if b in call.blocks else "its key"
                    yield difference(f"hashes[{b}]", expected, "none" if new[b] is None else "a key")
        if isinstance(call, ResetPrefixCache) and made.result.granted:
            if any(key is not None for key in new):
                yield difference("hashes", "no key, the cache was reset", "some")
            if _holders(made.before):
                yield difference("result.granted", "False, blocks are held", True)
        if self._shows("tables"):
            yield from self._contents_of(made, fresh)

    def _contents_of(self, made: Made, fresh: list[int]) -> Iterator[Difference]:
        hashes, holders = made.after.hashes, _holders(made.after)
        for b in fresh:
            if b not in holders:
                yield Difference(
                    f"hashes[{b}]", "a key of a request's tokens", "nobody holds it", "hash-soundness"
                )
        own = getattr(made.call, "request", None)
        look_at = {*fresh, *made.after.tables.get(own, ())} - {0} if own is not None else set(fresh)
        for b in sorted(look_at):
            if hashes[b] is None:
                continue
            for r, i in holders.get(b, ()):
                if b in fresh and made.entries[r].status is Status.LOADING:
                    statement = "published-is-written"
                    yield Difference(f"hashes[{b}]", "no key before the load arrives", "a key", statement)
                yield from self._content(b, hashes[b], made.entries[r], i)
        for b in sorted(look_at):
            shared = len(holders.get(b, ()))
            if shared > max(1, len(_holders(made.before).get(b, ()))) and made.before.hashes[b] is None:
                who = " and ".join(f"request {r}" for r, _ in holders[b])
                yield Difference(f"block {b}", "one holder, it was not published", who, "no-aliased-write")

    def _content(self, block: int, key: Any, entry: Entry, index: int) -> Iterator[Difference]:
        """The key is of the entry's tokens."""
        field, end = f"hashes[{block}]", (index + 1) * self._config.block_size
        if end > len(entry.tokens):
            got = f"a key that covers {end}"
            yield Difference(field, f"final tokens, {len(entry.tokens)}", got, "drafts-never-hashed")
            return
        content = Content(tuple(entry.tokens[:end]), entry.salt, entry.lora)
        known = self._contents.setdefault(key, content)
        if known != content:
            statement = "salt-isolation" if known.tokens == content.tokens else "hash-soundness"
            got = f"the key of {_told(known)}"
            expected = f"a key of {_told(content)} (request {entry.number}, entry {index})"
            yield Difference(field, expected, got, statement)

    def _granted(self, made: Made, call: Allocate) -> Iterator[Difference]:
        """Slots for all that was asked, and none that anybody else reads or writes."""
        entry, config = made.entries[call.request], self._config
        size = config.block_size
        hit = len(made.result.hits) * size
        if hit >= len(entry.tokens):
            yield Difference(
                "result.hits", f"less than its {len(entry.tokens)} tokens", str(hit), "hash-soundness"
            )
        total = made.computed + hit + call.external
        end = min(total + call.new + call.lookahead, config.max_model_len)
        if not self._shows("tables"):
            return
        table = made.after.tables.get(call.request, ())
        least, most = -(-end // size), -(-config.max_model_len // size)
        if not least <= len(table) <= most:
            got = f"{len(table)} entries: {table}"
            yield Difference(
                f"tables[{call.request}]", f"{least} to {most} entries for {end} tokens", got, "enough-slots"
            )
            return
        holders, held_before, skipped = _holders(made.after), _holders(made.before), self._skipped(total)
        for i in range(max(skipped, (total - call.external) // size), least):
            b = table[i]
            others = [r for r, j in holders.get(b, ()) if (r, j) != (call.request, i)]
            if b == 0 or others:
                whose = f"request {others[0]}'s too" if others else "the null block"
                got = f"block {b}, {whose}: two write to it" if others else whose
                yield Difference(
                    f"tables[{call.request}][{i}]", "a block of its own to write", got, "no-aliased-write"
                )
                return
            kept = b in held_before or b in made.result.hits  # else it was taken anew, its old key dropped
            key = made.after.hashes[b] if kept and self._shows("hashes") else None
            if key is not None and key == made.before.hashes[b]:
                got = f"block {b}, published before: who hits it reads what is written now"
                yield Difference(
                    f"tables[{call.request}][{i}]", "an unpublished block", got, "no-aliased-write"
                )
                return

    def _refused(self, made: Made) -> Iterator[Difference]:
        """A refusal changes nothing but what is out of the window (`_tables` looks at the tables)."""
        before, after, statement = made.before, made.after, "refusal-leaves-no-trace"
        for field in ("hashes", "to_zero"):
            if self._shows(field) and getattr(before, field) != getattr(after, field):
                yield Difference(field, "as before the refusal", "changed", statement)
        if self._shows("free_queue") and not set(before.free_queue) <= set(after.free_queue):
            taken = sorted(set(before.free_queue) - set(after.free_queue))
            yield Difference("free_queue", "no fewer free blocks", f"{taken} taken", statement)

    def _skipped(self, settled: int) -> int:
        """Table entries that no token from `settled` on attends to."""
        window = self._config.sliding_window
        return 0 if window is None else max(0, settled - window + 1) // self._config.block_size


def _holders(s: Snapshot) -> dict[int, list[tuple[int, int]]]:
    """By block, the table entries that hold it."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for r, table in s.tables.items():
        for i, block in enumerate(table):
            if block:
                holders.setdefault(block, []).append((r, i))
    return holders


def _told(content: Content) -> str:
    tags = "".join(f", {name} {tag}" for name, tag in (("salt", content.salt), ("lora", content.lora)) if tag)
    return f"tokens {','.join(map(str, content.tokens[-8:]))} up to {len(content.tokens)}{tags}"
