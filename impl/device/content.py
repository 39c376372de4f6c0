"""The content oracle: whatever the KV cache holds must be what the block tables and hashes say.

From the calls made of the manager, and from what the model has computed, follows what every slot must
hold: a request's own tokens in its blocks, the tokens that a hash stands for in a cached block, zeros in
the null block and after the tokens of a block that was zeroed, poison in a block that is free. After a
step the whole cache is read back and compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch

from slotproof.impl.allocator.block_pool import NULL_BLOCK
from slotproof.impl.device.fingerprint import POISON, ZERO, Fingerprints
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    Finish,
    Preempt,
    Result,
    Snapshot,
)

ANYTHING = -1
"""What a slot must hold about which nothing is promised: it waits for a load, and was not zeroed."""
_REMEMBERED = 8


class ContentError(AssertionError):
    """A place does not hold what it must.

    Args:
        place: Which slot, block or request.
        expected: What it must hold.
        found: What it holds.
        story: How it came to be: the last things that happened to the block.
        request: The request at fault, where it is one.
    """

    def __init__(self, place: str, expected: str, found: str, story: str, request: int | None = None) -> None:
        super().__init__(f"{place}: expected {expected}, got {found} ({story})")
        self.request = request
        self.place = place
        self.expected = expected
        self.found = found
        self.story = story


class Slots:
    """What a request's slots hold in one group, by position."""

    def __init__(self) -> None:
        self.contents: list[int] = []
        """What stands for the tokens up to each."""
        self.written: list[int] = []
        """What was last written; rejected drafts stay behind the computed tokens until overwritten."""
        self.drafted: list[int] = []
        """The same, of the drafter's layers."""


class Text:
    """A request's tokens, and what its slots hold of them in each group."""

    def __init__(self, fingerprints: Fingerprints, salt: int, lora: int, num_groups: int) -> None:
        self._fingerprints = fingerprints
        self._digests = [fingerprints.root(salt, lora)]
        self.tokens: list[int] = []
        self.slots = [Slots() for _ in range(num_groups)]
        self.num_computed_tokens = 0
        """Tokens whose KV is in the cache, as the device knows them."""

    def append(self, tokens: Iterable[int]) -> None:
        """More final tokens."""
        for token in tokens:
            digest = self._fingerprints.extend(self._digests[-1], token)
            self._digests.append(digest)
            self.tokens.append(token)
            for g, slots in enumerate(self.slots):
                slots.contents.append(self._fingerprints.content(digest, g))

    def admit(self, num_tokens: int, num_computed_tokens: int) -> None:
        """A request without blocks gets some: what was sampled after its first `num_tokens` tokens is
        forgotten, and the first `num_computed_tokens` are found written."""
        del self.tokens[num_tokens:], self._digests[num_tokens + 1 :]
        for slots in self.slots:
            del slots.contents[num_tokens:]
            slots.written = slots.contents[:num_computed_tokens]
            slots.drafted = slots.contents[:num_computed_tokens]
        self.num_computed_tokens = num_computed_tokens

    def known(self, start: int, end: int) -> list[list[int]]:
        """By group, the contents of these positions."""
        return [slots.contents[start:end] for slots in self.slots]

    def guess(self, num_tokens: int, token: int, count: int) -> list[list[int]]:
        """By group, the contents of `count` tokens, all of them `token`, after the first `num_tokens`."""
        contents: list[list[int]] = [[] for _ in self.slots]
        digest = self._digests[num_tokens]
        for _ in range(count):
            digest = self._fingerprints.extend(digest, token)
            for g, of_group in enumerate(contents):
                of_group.append(self._fingerprints.content(digest, g))
        return contents

    def next_token(self, vocabulary: int) -> int:
        """The token that the model samples after these: always the same."""
        return self._digests[-1][0] % vocabulary


class ContentOracle:
    """See the module.

    Args:
        config: The manager's configuration.
        kv_cache: The memory that is checked.
        fingerprints: What was written there.
        initial: The manager's state before its first call.
    """

    def __init__(
        self, config: Config, kv_cache: KVCache, fingerprints: Fingerprints, initial: Snapshot
    ) -> None:
        self.config = config
        self.fingerprints = fingerprints
        self.texts: dict[int, Text] = {}
        """Requests that are known."""
        self.step = 0
        """The step that is scheduled, or was last; events are told by it."""
        self._kv_cache = kv_cache
        self._page = kv_cache.block_size
        self._groups = config.all_groups
        self._snapshot = initial
        self._final: dict[int, list[int]] = {}
        self._published: dict[int, tuple[int, ...]] = {}
        self._keys: dict[object, tuple[int, ...]] = {}
        self._dead: set[int] = set(initial.free_queue)
        self._poisoned: set[int] = set()
        self._unzeroed: set[int] = set()
        self._meanings = {ZERO: "zeros", POISON: "the poison of a free block"}
        self._written_in: dict[int, int] = {}
        self._last_holder: dict[int, int] = {}
        self._history: list[deque[str]] = [deque(maxlen=_REMEMBERED) for _ in range(config.num_blocks)]

    def observe(self, call: Call, result: Result, snapshot: Snapshot) -> None:
        """A call has been made of the manager.

        Raises:
            ContentError: a key stood for other tokens before.
        """
        before, self._snapshot = self._snapshot, snapshot
        if isinstance(call, AddRequest):
            text = self.texts[call.request] = Text(self.fingerprints, call.salt, call.lora, len(self._groups))
            text.append(call.tokens)
            self._final[call.request] = list(call.tokens)
        elif isinstance(call, Complete):
            self._final[call.request] += call.sampled
        self._follow_blocks(call, result, before, snapshot)
        if isinstance(call, Allocate | CacheBlocks):
            self._follow_hashes(call.request, before, snapshot)
        self._dead |= self._unused()
        if isinstance(call, Finish):
            del self.texts[call.request], self._final[call.request]
        elif isinstance(call, Preempt):
            self.texts[call.request].admit(len(self._final[call.request]), 0)

    def take_dead(self) -> list[int]:
        """Blocks that were free without a hash since the last time: what they hold is good for nothing."""
        dead, self._dead = self._dead - self._poisoned, set()
        self._poisoned.update(dead & self._unused())
        return sorted(dead)

    def zeroed(self, blocks: Iterable[int]) -> None:
        """Blocks have been zeroed."""
        for block in blocks:
            self._tell(block, "zeroed")
            self._poisoned.discard(block)
            self._unzeroed.discard(block)
            if self._snapshot.ref_cnt[block] == 0:
                self._dead.add(block)

    def wrote(self, request: int, group: int, start: int, contents: list[int], how: str) -> None:
        """Contents have been written for a request from a position on, to the target model's layers of a
        group.

        Raises:
            ContentError: the request has no blocks for them.
        """
        self._wrote(self.texts[request].slots[group].written, request, group, start, contents, how)

    def drafted(
        self, request: int, group: int, start: int, contents: list[int], how: str = "drafted"
    ) -> None:
        """As `wrote`, of the drafter's layers."""
        self._wrote(self.texts[request].slots[group].drafted, request, group, start, contents, how)

    def _wrote(
        self, slots: list[int], request: int, group: int, start: int, contents: list[int], how: str
    ) -> None:
        known, end = self.texts[request].slots[group].contents, start + len(contents)
        slots[start:end] = contents
        row = self._row(request, group)
        for position, content in enumerate(contents, start):
            kind = "position" if known[position : position + 1] == [content] else "a wrong draft at"
            self._meanings.setdefault(content, f"{kind} {position} of {self._owner(row)}")
            self._written_in.setdefault(content, self.step)
        table, block_size = self._snapshot.tables.get(row, ()), self._groups[group].block_size
        granted = len(table) * block_size
        if end > granted:
            place = f"enough-slots: {self._owner(row)} has {granted} slots, {end} are written"
            without = f"none for positions {max(start, granted)} to {end - 1}"
            raise ContentError(place, "a slot for each", without, f"step {self.step}: {how}", request)
        for index in range(start // block_size, -(-end // block_size)):
            low, high = max(start, index * block_size), min(end, (index + 1) * block_size) - 1
            positions = f"positions {low} to {high} of {self._owner(row)}"
            if table[index] == NULL_BLOCK:
                why = f"step {self.step}: {how}"
                raise ContentError(positions, "a block to be written to", "none", why, request)
            self._tell(table[index], f"{positions} {how}")

    def check(self) -> None:
        """Read the whole cache back, after a step. Waits for the device.

        Raises:
            ContentError: a slot does not hold what it must.
        """
        for request, final in self._final.items():
            if self.texts[request].tokens[: len(final)] != final:
                place, why = f"request {request}", "so the scheduler"
                raise ContentError(place, "the tokens sampled", str(final), why, request)
        for row, table in self._snapshot.tables.items():
            if any(table):
                self._check_window(row, table)
        self._compare(self._kv_cache.target_layers, "", lambda slots: slots.written)
        if self._kv_cache.draft_layers:
            self._compare(self._kv_cache.draft_layers, " for the drafter", lambda slots: slots.drafted)

    def _row(self, request: int, group: int) -> int:
        """The row of a block table, as the protocol has it."""
        return request * len(self._groups) + group

    def _owner(self, row: int) -> str:
        """Whose block table is in a row."""
        request, group = divmod(row, len(self._groups))
        return f"request {request}" + (f" in group {group}" if len(self._groups) > 1 else "")

    def _compare(self, layers: range, whose: str, of: Callable[[Slots], list[int]]) -> None:
        """Some layers, with what `of` says of each request's slots in them."""
        expected = torch.tensor(self._expected(whose, of))
        tensor, part = self._kv_cache.bits, slice(layers.start, layers.stop)
        want = self.fingerprints.values(expected.clamp(min=ZERO))[part].view(tensor.dtype).to(tensor.device)
        got = tensor[part].flatten(2, 3)
        same = (got == want) | (expected == ANYTHING).to(tensor.device)[:, None, None]
        if not bool(same.all()):
            layer, _, slot = (~same).any(-1).any(-1).nonzero()[0].tolist()
            found = self.fingerprints.meaning(layers[layer], got[layer, :, slot])
            since = f", first written in step {self._written_in[found]}" if found in self._written_in else ""
            raise self._error(slot, whose, int(expected[slot]), self._describe(found) + since)

    def _expected(self, whose: str, of: Callable[[Slots], list[int]]) -> list[int]:
        """What each slot must hold, block after block. Behind the slots of a group whose blocks are smaller
        than the largest nothing is ever written."""
        page = self._page
        expected = [[ANYTHING] * page for _ in range(self.config.num_blocks)]
        expected[NULL_BLOCK] = [ZERO] * page
        for block in self._poisoned:
            expected[block] = [POISON] * page
        for block, published in self._published.items():
            expected[block] = [*published, *[ANYTHING] * (page - len(published))]
        for row, table in self._snapshot.tables.items():
            request, group = divmod(row, len(self._groups))
            contents, size = of(self.texts[request].slots[group]), self._groups[group].block_size
            for index, block in enumerate(table):
                if block == NULL_BLOCK:
                    continue
                own = contents[index * size : (index + 1) * size]
                own += [ANYTHING if block in self._unzeroed else ZERO] * (page - len(own))
                others = expected[block]
                for offset, (mine, other) in enumerate(zip(own, others, strict=True)):
                    if ANYTHING not in (mine, other) and mine != other:
                        also = f"something else for {self._owner(row)}: {self._describe(mine)}"
                        raise self._error(block * page + offset, whose, other, also)
                expected[block] = [o if m == ANYTHING else m for m, o in zip(own, others, strict=True)]
        return [content for block in expected for content in block]

    def _check_window(self, row: int, table: tuple[int, ...]) -> None:
        request, group = divmod(row, len(self._groups))
        computed, block_size = self.texts[request].num_computed_tokens, self._groups[group].block_size
        window = self._groups[group].sliding_window
        first = 0 if window is None else max(0, computed - window + 1) // block_size
        for index in range(first, -(-computed // block_size)):
            if index >= len(table) or table[index] == NULL_BLOCK:
                place = f"entry {index} of {self._owner(row)}"
                why = f"{computed} tokens are computed, and the next one looks into it"
                raise ContentError(place, "a block", "none", why, request)

    def _unused(self) -> set[int]:
        """Blocks that are free and have no hash."""
        return {block for block in self._snapshot.free_queue if self._snapshot.hashes[block] is None}

    def _follow_blocks(self, call: Call, result: Result, before: Snapshot, after: Snapshot) -> None:
        """Who took, hit and released which block, and which ones lost their hash."""
        for block in range(1, self.config.num_blocks):
            old_key, new_key = before.hashes[block], after.hashes[block]
            if old_key is not None and old_key != new_key:
                del self._published[block]
                self._tell(block, f"lost its hash by {_name(call)}")
            more = after.ref_cnt[block] - before.ref_cnt[block]
            if more < 0:
                self._tell(block, f"released by {_name(call)}, {after.ref_cnt[block]} references left")
            elif more > 0 and old_key is not None and old_key == new_key:
                self._tell(block, f"hit by {_name(call)}")
            elif more > 0 or (isinstance(call, Allocate) and block in result.new_blocks):
                self._tell(block, f"taken by {_name(call)}")
                if isinstance(call, Allocate):
                    self._last_holder[block] = call.request
                self._poisoned.discard(block)
                self._unzeroed.add(block)

    def _follow_hashes(self, request: int, before: Snapshot, after: Snapshot) -> None:
        """Which tokens the new hashes stand for."""
        for group in range(len(self._groups)):
            self._follow_hashes_of(self._row(request, group), before, after)

    def _follow_hashes_of(self, row: int, before: Snapshot, after: Snapshot) -> None:
        request, group = divmod(row, len(self._groups))
        size, contents = self._groups[group].block_size, self.texts[request].slots[group].contents
        for index, block in enumerate(after.tables.get(row, ())):
            key = after.hashes[block]
            if block == NULL_BLOCK or key is None or block in self._published:
                continue
            tokens = tuple(contents[index * size : (index + 1) * size])
            self._published[block] = tokens
            for position, content in enumerate(tokens, index * size):
                self._meanings.setdefault(content, f"position {position} of {self._owner(row)}")
            last = (index + 1) * size - 1
            self._tell(block, f"published with positions {index * size} to {last} of {self._owner(row)}")
            if self._keys.setdefault(key, tokens) != tokens:
                place = f"the hash of block {block}"
                story = self._story(block)
                raise ContentError(place, "that of equal tokens", "that of others", story, request)

    def _tell(self, block: int, event: str) -> None:
        self._history[block].append(f"step {self.step}: {event}")

    def _error(self, slot: int, whose: str, expected: int, found: str) -> ContentError:
        block, offset = divmod(slot, self._page)
        held = [
            (index, row)
            for row, table in self._snapshot.tables.items()
            for index, entry in enumerate(table)
            if entry == block
        ]
        holders = ", ".join(f"entry {index} of {self._owner(row)}" for index, row in held)
        place = f"slot {offset} of block {block}{whose}, {holders or 'held by nobody'}"
        at_fault = held[0][1] // len(self._groups) if held else self._last_holder.get(block)
        return ContentError(place, self._describe(expected), found, self._story(block), at_fault)

    def _story(self, block: int) -> str:
        """What last happened to a block."""
        return "; ".join(self._history[block]) or "nothing has happened to it"

    def _describe(self, content: int | None) -> str:
        if content is None:
            return "what nobody wrote"
        return self._meanings.get(content, "tokens that nobody wrote")


def _name(call: Call) -> str:
    name = str(type(call).__struct_config__.tag)
    request = getattr(call, "request", None)
    return name if request is None else f"{name} of request {request}"
