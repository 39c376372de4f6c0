"""The pool that the code under test asks, which answers with the model's terms and follows what is asked.

At every call the model must do the same next: give the same blocks back, touch the same hits, take as many,
hash the same blocks under the same keys, in this order. So the pool is in the model's state all along.
"""

from __future__ import annotations

from typing import Any

import z3

from slotproof.model.language.keys import block_key
from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.numbers import Number
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.conform.sequences import Items
from slotproof.proofs.conform.situation import Situation
from slotproof.proofs.prove.claims import as_term


class Differs(BaseException):
    """The model does otherwise (`what`), wherever `claim` does not hold."""

    def __init__(self, what: str, claim: z3.BoolRef) -> None:
        super().__init__(what)
        self.what = what
        self.claim = claim


class Follower:
    """What has been asked in this run so far."""

    def __init__(self, situation: Situation, path: Path) -> None:
        self.situation = situation
        self.path = path
        answer, r = situation.answer(path), situation.request
        self.answer = answer
        self.state = situation.before
        self._claims: list[tuple[str, z3.BoolRef]] = []
        self._has_released = self._has_touched = self._has_published = False
        self._taken: Any = z3.IntVal(0)
        self._touches = 0
        if not situation.case.holds:
            self._touches = answer.adopted.length(r) - answer.adopted.first(r)
        self._takes = answer.committed.length(r) - answer.adopted.length(r)
        self._gives_back = answer.released.first(r) - situation.before.first(r)

    def agree(self, what: str, *claims: Any) -> None:
        """The claims are to be shown, here or by `settle`.

        Raises:
            Differs: one is not.
        """
        self.path.goes_on()
        terms = [z3.simplify(as_term(claim)) for claim in claims]
        self._claims += [(what, term) for term in terms if not z3.is_true(term)]
        if any(z3.is_false(term) for term in terms):
            self.settle()

    def settle(self) -> None:
        """Show what was claimed: all at once, and one by one only if that fails.

        Raises:
            Differs: a claim is not shown.
        """
        claims, self._claims = self._claims, []
        if not self.path.settle(*(claim for _, claim in claims)):
            for what, claim in claims:
                if not self.path.entails(claim):
                    raise Differs(what, claim)

    def alike(self, what: str, length: Any, expected: Any, at: Any, expected_at: Any) -> None:
        """Two lists are the same."""
        self.agree(what, length == expected)
        x = self.path.integer("x")
        self.agree(what, z3.Implies(z3.And(x >= 0, x < length), at(x) == expected_at(x)))

    # What a pool answers.

    @property
    def num_free(self) -> Number:
        """Free blocks now."""
        return Number(self.state.num_free - self._taken)

    def ref_cnt(self, block: Any) -> Any:
        """A block's references now."""
        return self.state.ref_cnt(block)

    # What a pool is asked.

    def free(self, blocks: Items) -> None:
        """These blocks lose a reference, in order."""
        if self._is_nothing(blocks.length):
            return
        if self._has_released or self._has_touched or not self._taken.eq(z3.IntVal(0)):
            self.agree("blocks are given back after stage 1", z3.BoolVal(False))
        self.alike(
            "other blocks are given back",
            blocks.length,
            self._gives_back,
            blocks.at,
            lambda x: self.situation.given_back(self.answer.released.first(self.situation.request), x),
        )
        self._has_released, self.state = True, self.answer.released

    def touch(self, blocks: Items) -> None:
        """These blocks get a reference, and leave the queue."""
        if self._is_nothing(blocks.length):
            return
        self._commit()
        answer, r = self.answer, self.situation.request
        if self._has_touched or not self._taken.eq(z3.IntVal(0)):
            self.agree("blocks are touched more than once", z3.BoolVal(False))
        self.alike(
            "other hits are touched",
            blocks.length,
            self._touches,
            blocks.at,
            lambda x: answer.adopted.table(r, answer.adopted.first(r) + x),
        )
        self._has_touched, self.state = True, answer.adopted

    def take(self, count: Any) -> Items:
        """So many blocks from the front of the queue; its elements are plain numbers."""
        n = count.term if isinstance(count, Number) else z3.IntVal(count)
        if self._is_nothing(n):
            return Items.empty()
        self._commit()
        if not self._has_touched:
            self.agree("blocks are taken before the hits are touched", self._touches == 0)
        start, at = self._taken, self.answer.adopted.at
        self.agree("more blocks are taken", n >= 0, start + n <= self._takes)
        self._taken = z3.simplify(start + n)
        return Items(n, lambda x: at(start + x), Number(0))

    def publish(self, low: Any, high: Any, block: Any, key: Any) -> None:
        """Entries low .. high - 1 of the request's table are hashed: `block(x)` under `key(x)`."""
        self.agree("blocks are hashed in a call that is refused", self.answer.granted)
        self._is_committed()
        answer, r = self.answer, self.situation.request
        if self._has_published:
            self.agree("blocks are hashed more than once", z3.BoolVal(False))
        self.agree(
            "other blocks are hashed",
            low == answer.committed.num_cached(r),
            high == answer.state.num_cached(r),
        )
        x = self.path.integer("x")
        inside = z3.And(low <= x, x < high)
        self.agree("other blocks are hashed", z3.Implies(inside, block(x) == answer.committed.table(r, x)))
        self.agree("a block is hashed with another key", z3.Implies(inside, key(x) == self.key(x)))
        self._has_published = True

    def key(self, i: Any) -> Any:
        """The key of the request's block i."""
        return block_key(self.situation.engine, self.situation.request, i)

    # How a call ends.

    def refused(self, table: Items) -> None:
        """The answer is no."""
        answer, r = self.answer, self.situation.request
        self.agree("a call is refused", not answer.granted)
        self._is_released()
        self.alike(
            "a refusal changes the table",
            table.length,
            answer.released.length(r),
            table.at,
            lambda x: answer.released.table(r, x),
        )

    def granted(self, table: Items, num_cached: Any, to_zero: Items, new: Items) -> None:
        """The answer is yes: the request's table, its entries that need no hash any more, the blocks to be
        zeroed, and the new ones that are returned."""
        answer, r = self.answer, self.situation.request
        self.agree("a call is granted", answer.granted)
        self._is_committed()
        t = answer.state
        if not self._has_published:
            hashed = z3.And(t.num_cached(r) > answer.committed.num_cached(r), self.situation.looks_back)
            self.agree("no blocks are hashed", z3.Not(hashed))
        self.alike("the table differs", table.length, t.length(r), table.at, lambda x: t.table(r, x))
        self.agree(
            "hashed entries are counted otherwise",
            z3.Implies(self.situation.looks_back, num_cached == t.num_cached(r)),
        )
        self.alike(
            "other blocks are to be zeroed",
            to_zero.length,
            t.num_to_zero(0),
            to_zero.at,
            lambda j: t.to_zero(0, j),
        )
        self.alike(
            "other blocks are returned",
            new.length,
            answer.new_high(0) - answer.new_low(0),
            new.at,
            lambda x: t.table(r, answer.new_low(0) + x),
        )

    def _is_nothing(self, count: z3.ArithRef) -> bool:
        self.path.goes_on()
        if self.path.iteration is not None:
            raise Unsupported("the pool is asked in a loop of any length")
        return self.path.knows(count == 0)

    def _is_released(self) -> None:
        if not self._has_released:
            self.agree("no blocks are given back", self._gives_back == 0)

    def _commit(self) -> None:
        """The pool changes for good: the check must have passed."""
        self.agree("the pool is changed in a call that is refused", self.answer.granted)
        self._is_released()

    def _is_committed(self) -> None:
        self._is_released()
        if not self._has_touched:
            self.agree("no hits are touched", self._touches == 0)
        self.agree("fewer blocks are taken", self._taken == self._takes)
