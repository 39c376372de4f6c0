"""Division by the block size, without quantifiers: what is proved of it is found, and nothing else."""

from __future__ import annotations

import pytest
import z3

from slotproof.proofs.conform.solver import Solver
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term

SIZE = z3.Int("size")
A, B = z3.Ints("a b")
LIMIT = 2_000_000
FALSE = {
    "ceil is floor": arithmetic.ceil(A, SIZE) == arithmetic.floor(A, SIZE),
    "floor is strictly monotone": z3.Implies(A < B, arithmetic.floor(A, SIZE) < arithmetic.floor(B, SIZE)),
    "a product is no less than its factor": arithmetic.times(A, SIZE) >= A,
    "two parts need no block more": arithmetic.ceil(A + B, SIZE)
    <= arithmetic.floor(A, SIZE) + arithmetic.ceil(B, SIZE),
}


def solver() -> Solver:
    made = Solver()
    made.add(SIZE >= 1)
    return made


@pytest.mark.parametrize("claim", arithmetic.PROPERTIES, ids=lambda claim: claim.name)
def test_every_property_is_found(claim: Claim) -> None:
    variables = [*z3.Ints("x y"), SIZE][3 - claim.arity :]
    assert solver().check(z3.Not(as_term(claim.body(*variables))), LIMIT) == z3.unsat


def test_rounding_up_by_adding_a_size_less_one() -> None:
    whole = arithmetic.floor(A + SIZE - 1, SIZE) == arithmetic.ceil(A, SIZE)
    assert solver().check(z3.Not(whole), LIMIT) == z3.unsat


@pytest.mark.parametrize("claim", FALSE.values(), ids=FALSE)
def test_what_is_false_is_not_shown(claim: z3.BoolRef) -> None:
    assert solver().check(z3.Not(claim), LIMIT) == z3.sat


def test_a_scope_is_forgotten() -> None:
    made = solver()
    made.add(A >= 1)
    with made.scope():
        made.add(arithmetic.ceil(A, SIZE) == 0)
        assert made.check(z3.BoolVal(True), LIMIT) == z3.unsat
    assert made.check(arithmetic.ceil(A, SIZE) == 1, LIMIT) == z3.sat
    assert made.check(arithmetic.ceil(A, SIZE) == 0, LIMIT) == z3.unsat
