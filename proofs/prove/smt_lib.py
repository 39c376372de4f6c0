"""An obligation as a problem for any solver: its text in SMT-LIB 2, and a digest that is its name.

The digest is of the problem and of nothing else: the same terms have it in every process and on every
machine. (Of the text that cannot be said: Z3 names shared terms by what else it has in memory.)
"""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any

import z3
from z3 import z3core

from slotproof.proofs.prove.obligation import Obligation, problem


def text(obligation: Obligation, core: list[z3.BoolRef] | None = None) -> str:
    """The problem in SMT-LIB 2, or that part of it. A solver has to answer `unsat`."""
    solver = z3.SimpleSolver()
    solver.add(*(problem(obligation) if core is None else core))
    title = f"; {obligation.kind}, {obligation.name}: proved if this is unsat"
    return f"{title}\n(set-logic ALL)\n{solver.sexpr()}(check-sat)\n"


class Digests:
    """The digests of many problems, each term of which is looked at once.

    Z3's C interface is called as it is: its Python objects would take most of the time of a second `prove`.
    """

    def __init__(self) -> None:
        self._context = z3.main_ctx().ref()
        self._known: dict[int, bytes] = {}
        self._functions: dict[int, bytes] = {}
        self._kept: list[list[z3.BoolRef]] = []

    def of(self, obligation: Obligation) -> str:
        """The digest of a problem, in hexadecimal."""
        whole = hashlib.sha256()
        for fact in self._facts(obligation):
            whole.update(fact)
        return whole.hexdigest()

    def of_facts(self, obligation: Obligation) -> list[str]:
        """The digests of what a problem is made of."""
        return [fact.hex() for fact in self._facts(obligation)]

    def _facts(self, obligation: Obligation) -> list[bytes]:
        facts = problem(obligation)
        self._kept.append(facts)  # as long as its term is there, an id is its own
        return [self._term(fact.as_ast()) for fact in facts]

    def _term(self, term: Any) -> bytes:
        context, number = self._context, z3core.Z3_get_ast_id(self._context, term)
        known = self._known.get(number)
        if known is not None:
            return known
        kind = z3core.Z3_get_ast_kind(context, term)
        if kind == z3.Z3_APP_AST:
            parts = [
                z3core.Z3_get_app_arg(context, term, n)
                for n in range(z3core.Z3_get_app_num_args(context, term))
            ]
            here = hashlib.sha256(self._function(z3core.Z3_get_app_decl(context, term)))
        elif kind == z3.Z3_NUMERAL_AST:
            parts, here = [], hashlib.sha256(z3core.Z3_get_numeral_string(context, term).encode())
        elif kind == z3.Z3_VAR_AST:
            parts, here = [], hashlib.sha256(b"var %d" % z3core.Z3_get_index_value(context, term))
        else:
            quantifier = z3.QuantifierRef(term)
            patterns = [quantifier.pattern(n).children() for n in range(quantifier.num_patterns())]
            bound = [str(quantifier.var_sort(n)) for n in range(quantifier.num_vars())]
            head = (quantifier.is_forall(), quantifier.qid(), bound, [len(pattern) for pattern in patterns])
            here = hashlib.sha256(repr(head).encode())
            parts = [t.as_ast() for t in (quantifier.body(), *chain.from_iterable(patterns))]
        for part in parts:
            here.update(self._term(part))
        self._known[number] = here.digest()
        return self._known[number]

    def _function(self, declaration: Any) -> bytes:
        number = z3core.Z3_get_func_decl_id(self._context, declaration)
        if number not in self._functions:
            of = z3.FuncDeclRef(declaration)
            sorts = [of.domain(n).name() for n in range(of.arity())]
            self._functions[number] = repr((of.name(), sorts, of.range().name())).encode()
        return self._functions[number]
