"""Faults that are none: changes of the source that make no difference, and why.

A fault is named by its file, the function that it is in, and its kind. Where nothing sees a fault that is not
argued here, a check is missing.
"""

from __future__ import annotations

from slotproof.proofs.mutate.faults import Fault

ARGUED: dict[tuple[str, str, str], str] = {
    ("model/system/pool.py", "_insert", "dropped update of evicted_idle"): (
        "only a free block is ever marked; it has lost its hash, so only `take` hands it out, which clears "
        "the mark: no block that is put back is marked"
    ),
}


def why_none(fault: Fault) -> str:
    """Why the fault makes no difference; nothing if that is not known."""
    return ARGUED.get((fault.file, fault.function, fault.kind), "")
