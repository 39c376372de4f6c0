"""What the scheduler keeps of its requests, in the model as it was read off the live ones."""

from __future__ import annotations

from slotproof.impl.vllm.live.events import Ledger
from slotproof.model.integers.sparse import Sparse
from slotproof.model.language.changes import Change, one
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, UNKNOWN, WAITING
from slotproof.model.running import Running, Text

_STATUS = {"WAITING": WAITING, "RUNNING": RUNNING, "PREEMPTED": PREEMPTED}
"""Whatever else a request waits for, it pays no watermark, as one that loads."""
_NOTHING = {"status": UNKNOWN, "num_tokens": 0, "computed": 0, "in_flight": 0, "prompt": 0, "junction": 0}


class Ledgers:
    """The requests that are known, and the model's numbers of them. An id that comes again is another."""

    def __init__(self, running: Running) -> None:
        assert isinstance(running.read, Sparse)
        self.numbers: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self._running = running
        self._read = running.read
        self._next = 0
        self._letters: dict[str, int] = {}
        self._tags: dict[str, int] = {}

    def set(self, ledger: Ledger) -> int:
        """The model's request is as the live one; its number."""
        r, texts = self.numbers.get(ledger.request), self._read.texts
        if r is None or r not in texts:
            r = self._next
            self._next += 1
            self.numbers[ledger.request], self.names[r] = r, ledger.request
        letters = [c if type(c) is int else self._letter(str(c)) for c in ledger.letters]
        if ledger.begins or r not in texts:
            texts[r] = Text(letters, self._tag(ledger.salt), self._tag(ledger.lora))
        elif letters:
            texts[r].grow(letters)
        now = {
            "status": _STATUS.get(ledger.status, LOADING),
            "num_tokens": ledger.num_tokens,
            "computed": ledger.computed,
            "in_flight": ledger.in_flight,
            "prompt": ledger.prompt,
            "junction": ledger.junction,
        }
        self._set(r, now)
        return r

    def lose(self, name: str) -> int:
        """A request's rows are nobody's from now on: its number, by which they are still known."""
        r = self.numbers.pop(name)
        del self.names[r]
        return r

    def forget(self, r: int) -> None:
        """Nobody will ask about it any more."""
        self._set(r, _NOTHING)
        self._read.forget(r)
        name = self.names.pop(r, None)
        if name is not None:
            del self.numbers[name]

    def _set(self, r: int, values: dict[str, int]) -> None:
        s = self._running.state
        changes = {
            field: Change(getattr(s, field), one(r), value)
            for field, value in values.items()
            if getattr(s, field)(r) != value
        }
        if changes:
            self._running.take(s.replace(**changes))

    def _letter(self, text: str) -> int:
        return self._letters.setdefault(text, -1 - len(self._letters))

    def _tag(self, text: str) -> int:
        return self._tags.setdefault(text, len(self._tags) + 1) if text else 0
