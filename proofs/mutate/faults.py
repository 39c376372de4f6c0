"""Small faults in a source text, as somebody might make them."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
_COMPARISONS |= {ast.NotEq: ast.Eq}


@dataclass(frozen=True)
class Fault:
    """One change to one file: the text between two positions, replaced. Lines count from 1, columns from 0
    (in bytes, which in the model's source are characters)."""

    file: str
    kind: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    function: str = ""
    """The function that it is in; of functions inside one another, the outermost."""

    @property
    def name(self) -> str:
        """What it is called in reports, the same in every run on the same source."""
        return f"{self.file}:{self.line}:{self.column} {self.kind}"

    def applied(self, source: str) -> str:
        """The source with the fault in it."""
        lines = source.splitlines(keepends=True)
        before = "".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + "".join(lines[self.end_line :])
        return before + self.text + after

    def diff(self, source: str) -> str:
        """The change, for people."""
        old, new = source.splitlines(), self.applied(source).splitlines()
        return "\n".join(list(difflib.unified_diff(old, new, self.file, self.file, lineterm="", n=1))[2:])


def faults(file: str, source: str) -> Iterator[Fault]:
    """Every fault that can be put into a source: a comparison that is off at its edge or turned round, a
    number off by one, a condition that is dropped, branches that are swapped, a field not updated."""
    tree = ast.parse(source)
    functions = {
        inner: outer.name
        for outer in tree.body
        if isinstance(outer, ast.FunctionDef)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        for kind, place, text in _changes(node):
            if place.end_lineno is not None and place.end_col_offset is not None:
                where = (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset)
                yield Fault(file, kind, *where, text, functions.get(node, ""))


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            other = ast.Compare(left, [_COMPARISONS[type(operator)]()], [right])
            yield "comparison", node, f"({ast.unparse(other)})"
        case ast.BinOp(op=ast.Add(), left=left, right=ast.Constant(value=1)):
            yield "off by one", node, ast.unparse(left)
        case ast.BinOp(op=ast.Sub(), left=left, right=ast.Constant(value=1)):
            yield "off by one", node, ast.unparse(left)
        case ast.Call(func=ast.Name(id="both" | "either"), args=[_, _, *_] as parts):
            for n, part in enumerate(parts):
                if not isinstance(part, ast.Starred):
                    kept = ast.Call(node.func, [p for m, p in enumerate(parts) if m != n], [])
                    yield f"dropped condition {n + 1}", node, ast.unparse(kept)
        case ast.Call(func=ast.Name(id="ite"), args=[condition, then, otherwise]):
            yield "swapped branches", node, ast.unparse(ast.Call(node.func, [condition, otherwise, then], []))
        case ast.Call(func=ast.Name(id="minimum")):
            yield "maximum for minimum", node.func, "maximum"
        case ast.Call(func=ast.Attribute(attr="replace"), args=[], keywords=[_, _, *_] as updates):
            for update in updates:
                kept = ast.Call(node.func, [], [other for other in updates if other is not update])
                yield f"dropped update of {update.arg}", node, ast.unparse(kept)
