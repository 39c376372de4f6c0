"""The source of the model: Python decides by what is known when it is read, never by a term."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import slotproof.model.language.algebra as algebra

MODEL = Path(algebra.__file__).parents[1]
CONCRETE = ("language/algebra.py", "language/behaviours.py", "running.py")
"""The operators themselves, what a release is called, and what runs the model (as all of `integers` does)."""


def sources() -> list[Path]:
    named = ((path, str(path.relative_to(MODEL))) for path in sorted(MODEL.rglob("*.py")))
    return [path for path, name in named if name not in CONCRETE and not name.startswith("integers/")]


def is_known(test: ast.expr, flags: frozenset[str]) -> bool:
    """A condition on a rule, on what is there at all, on names or lengths, or on a bool that was passed."""
    match test:
        case ast.BoolOp(op=ast.And(), values=[first, *_]) if makes_known(first):
            return True
        case ast.BoolOp(values=parts):
            return all(is_known(part, flags) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_known(operand, flags)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=table)]):
            return table.isupper()
        case ast.Compare(
            ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr="behaviours" | "kinds")]
        ):
            return True
        case ast.Attribute(attr="is_one" | "behaviours"):
            return True
        case ast.Compare(comparators=[ast.Name(id="FULL" | "SLIDING_WINDOW")]):
            return True  # where a release's behaviours ask; a term would raise
        case ast.Compare(comparators=[ast.Constant(value=str())]):
            return True
        case ast.Compare(left=ast.Call(func=ast.Name(id="len")), ops=[_]):
            return True
        case ast.Attribute(value=ast.Name(id="rules") | ast.Attribute(attr="rules")):
            return True
        case ast.Call(func=ast.Name(id="callable" | "isinstance")):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in flags
        case ast.Name(id=name):
            return name in flags
    return False


def makes_known(test: ast.expr) -> bool:
    """What comes behind it is asked of Python values: of an int, or of a release, which only runs."""
    match test:
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.Compare(ops=[ast.In()], comparators=[ast.Attribute(attr="behaviours")]):
            return True
    return False


def asked(node: ast.AST, flags: frozenset[str] = frozenset()) -> Iterator[str]:
    """Where Python asks whether something is true that may be a term."""
    tests: list[ast.expr] = []
    match node:
        case ast.FunctionDef(args=of):
            named = ((a.arg, a.annotation) for a in (*of.args, *of.kwonlyargs))
            flags |= {name for name, kind in named if isinstance(kind, ast.Name) and kind.id == "bool"}
            flags |= {of.vararg.arg} if of.vararg else set()
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            tests = [test]
        case ast.BoolOp(op=ast.And(), values=[first, *_]) if makes_known(first):
            tests = [first]
        case ast.BoolOp(values=values):
            tests = values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            tests = [operand]
        case ast.comprehension(ifs=ifs):
            tests = ifs
        case ast.Compare(ops=[_, _, *_]):
            tests = [node]  # a <= b < c is an `and`
    yield from (f"{test.lineno}: {ast.unparse(test)}" for test in tests if not is_known(test, flags))
    for child in ast.iter_child_nodes(node):
        yield from asked(child, flags)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(MODEL)))
def test_no_condition_is_on_a_term(path: Path) -> None:
    tree = ast.parse(path.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    known = {f.name for f in functions if isinstance(f.returns, ast.Name) and f.returns.id == "bool"}
    assert list(asked(tree, frozenset(known))) == []


@pytest.mark.parametrize(
    "line",
    ["s.num_free == 0 and x", "not s.is_free(b)", "1 if s.num_free > 0 else 2", "0 <= n < s.num_free"],
)
def test_a_condition_on_a_term_is_seen(line: str) -> None:
    assert list(asked(ast.parse(f"def f(s, b, n, x):\n    return {line}")))
