"""Which local variables a loop carries from one iteration to the next, by the bytecode."""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType

_READS = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "DELETE_FAST"}
_ENDS = {
    "RETURN_VALUE",
    "RAISE_VARARGS",
    "RERAISE",
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
}


@cache
def carried(code: CodeType, offset: int) -> frozenset[str]:
    """The variables that are read, from the instruction at `offset` on, before they are written."""
    instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    place = {instruction.offset: n for n, instruction in enumerate(instructions)}
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(instructions))):
            instruction = instructions[n]
            after: set[str] = set()
            if instruction.opname not in _ENDS and n + 1 < len(instructions):
                after |= live[n + 1]
            if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
                after |= live[place[instruction.argval]]
            if instruction.opname == "STORE_FAST":
                after.discard(instruction.argval)
            if instruction.opname in _READS:
                after.add(instruction.argval)
            if after != live[n]:
                live[n], changed = frozenset(after), True
    return live[place[offset]]


def accumulates(code: CodeType) -> bool:
    """The code is a comprehension, whose result is on the stack where nobody sees it."""
    return any(i.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD") for i in dis.get_instructions(code))
