"""Faults put into a module on its syntax tree, by the operators and names of SWE-smith (arXiv 2504.21798,
github.com/SWE-bench/SWE-smith, `swesmith/bug_gen/procedural/python`), so that results compare.

Each operator lists what it can replace in a function or a class. What it gives need be no fault: whoever calls it runs
tests. Departures: `ControlShuffleLines` and `ClassShuffleMethods` swap two neighbours instead of shuffling all, and
`RemoveWrapper` keeps what was wrapped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from tsr_lightning.errors import ConfigError

try:
    import libcst as cst
    from libcst import matchers as m
except ModuleNotFoundError:
    remedy = "install the extra: pip install 'tsr-lightning[swe]'"
    raise ConfigError(f"tsr/SWE-v0 needs the package libcst, which is missing: {remedy}.") from None

Replacement = tuple[cst.CSTNode, cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[Any]]
Operator = Callable[[cst.CSTNode], Iterator[Replacement]]

_FLIPPED: dict[type[cst.CSTNode], type[cst.CSTNode]] = {
    cst.Add: cst.Subtract,
    cst.Multiply: cst.Divide,
    cst.FloorDivide: cst.Modulo,
    cst.And: cst.Or,
    cst.Equal: cst.NotEqual,
    cst.LessThan: cst.GreaterThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
    cst.In: cst.NotIn,
    cst.Is: cst.IsNot,
}
_FLIPPED |= {flipped: operator for operator, flipped in _FLIPPED.items()}
_CLASSES: tuple[tuple[type[cst.CSTNode], ...], ...] = (
    (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo),
    (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual),
    (cst.BitAnd, cst.BitOr, cst.BitXor),
    (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign),
)


def _operators(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for found in m.findall(node, m.BinaryOperation() | m.BooleanOperation() | m.AugAssign() | m.ComparisonTarget()):
        yield found.operator  # type: ignore[attr-defined]


def _like(operator: cst.CSTNode, other: type[cst.CSTNode]) -> cst.CSTNode:
    """Another operator with the same space around it."""
    names = ("whitespace_before", "whitespace_after")
    return other(**{name: getattr(operator, name) for name in names})


def operation_change(node: cst.CSTNode) -> Iterator[Replacement]:
    """Another operator of the same kind."""
    for operator in _operators(node):
        for members in _CLASSES:
            if type(operator) in members:
                yield from ((operator, _like(operator, other)) for other in members if other is not type(operator))


def operation_flip_operator(node: cst.CSTNode) -> Iterator[Replacement]:
    """The opposite operator."""
    for operator in _operators(node):
        if (other := _FLIPPED.get(type(operator))) is not None:
            yield operator, _like(operator, other)


def operation_swap_operands(node: cst.CSTNode) -> Iterator[Replacement]:
    """`a - b` becomes `b - a`."""
    for found in m.findall(node, m.BinaryOperation()):
        assert isinstance(found, cst.BinaryOperation)
        yield found, found.with_changes(left=found.right, right=found.left)
    for found in m.findall(node, m.Comparison(comparisons=[m.ComparisonTarget()])):
        assert isinstance(found, cst.Comparison)
        [target] = found.comparisons
        swapped = target.with_changes(comparator=found.left)
        yield found, found.with_changes(left=target.comparator, comparisons=[swapped])


def operation_break_chains(node: cst.CSTNode) -> Iterator[Replacement]:
    """`a + b + c` becomes `a + c`."""
    for found in m.findall(node, m.BinaryOperation()):
        assert isinstance(found, cst.BinaryOperation)
        if isinstance(found.left, cst.BinaryOperation):
            yield found, found.with_changes(left=found.left.left)
        elif isinstance(found.right, cst.BinaryOperation):
            yield found, found.with_changes(right=found.right.right)


def operation_change_constants(node: cst.CSTNode) -> Iterator[Replacement]:
    """A whole number becomes one of its neighbours."""
    for found in m.findall(node, m.Integer()):
        assert isinstance(found, cst.Integer)
        number = found.evaluated_value
        yield found, cst.Integer(str(number + 1))
        if number > 0:
            yield found, cst.Integer(str(number - 1))


def control_if_else_invert(node: cst.CSTNode) -> Iterator[Replacement]:
    """The branches of an if change places."""
    for found in m.findall(node, m.If(orelse=m.Else())):
        assert isinstance(found, cst.If)
        assert isinstance(found.orelse, cst.Else)
        orelse = found.orelse.with_changes(body=found.body)
        yield found, found.with_changes(body=found.orelse.body, orelse=orelse)


def control_shuffle_lines(node: cst.CSTNode) -> Iterator[Replacement]:
    """Two statements in a row change places."""
    for block in m.findall(node, m.IndentedBlock()):
        assert isinstance(block, cst.IndentedBlock)
        yield from _swaps(block, [place for place, line in enumerate(block.body) if not _is_docstring(line)])


def remove_loop(node: cst.CSTNode) -> Iterator[Replacement]:
    yield from _removed(node, m.For() | m.While())


def remove_conditional(node: cst.CSTNode) -> Iterator[Replacement]:
    yield from _removed(node, m.If())


def remove_assign(node: cst.CSTNode) -> Iterator[Replacement]:
    yield from _removed(node, m.SimpleStatementLine(body=[m.Assign() | m.AugAssign() | m.AnnAssign()]))


def remove_wrapper(node: cst.CSTNode) -> Iterator[Replacement]:
    """What a try or a with holds, without it."""
    for found in m.findall(node, m.Try() | m.With()):
        assert isinstance(found, cst.Try | cst.With)
        if isinstance(found.body, cst.IndentedBlock):
            yield found, cst.FlattenSentinel(found.body.body)


def class_remove_bases(node: cst.CSTNode) -> Iterator[Replacement]:
    if isinstance(node, cst.ClassDef) and node.bases:
        default = cst.MaybeSentinel.DEFAULT
        yield node, node.with_changes(bases=[], lpar=default, rpar=default)


def class_remove_funcs(node: cst.CSTNode) -> Iterator[Replacement]:
    if isinstance(node, cst.ClassDef):
        yield from (
            (method, cst.RemoveFromParent()) for method in node.body.body if isinstance(method, cst.FunctionDef)
        )


def class_shuffle_methods(node: cst.CSTNode) -> Iterator[Replacement]:
    if isinstance(node, cst.ClassDef) and isinstance(node.body, cst.IndentedBlock):
        methods = [place for place, line in enumerate(node.body.body) if isinstance(line, cst.FunctionDef)]
        yield from _swaps(node.body, methods)


OPERATORS: Mapping[str, Operator] = {
    "ClassRemoveBases": class_remove_bases,
    "ClassRemoveFuncs": class_remove_funcs,
    "ClassShuffleMethods": class_shuffle_methods,
    "ControlIfElseInvert": control_if_else_invert,
    "ControlShuffleLines": control_shuffle_lines,
    "OperationBreakChains": operation_break_chains,
    "OperationChange": operation_change,
    "OperationChangeConstants": operation_change_constants,
    "OperationFlipOperator": operation_flip_operator,
    "OperationSwapOperands": operation_swap_operands,
    "RemoveAssign": remove_assign,
    "RemoveConditional": remove_conditional,
    "RemoveLoop": remove_loop,
    "RemoveWrapper": remove_wrapper,
}
ONE_LINE = ("OperationChange", "OperationChangeConstants", "OperationFlipOperator", "OperationSwapOperands")


@dataclass(frozen=True)
class Site:
    """A place for a fault."""

    operator: str
    path: str
    name: str  # of the function, or of the class
    replacement: Replacement


@cache
def parse(text: str) -> cst.Module:
    return cst.parse_module(text)


@cache
def sites(path: str, text: str, operators: tuple[str, ...]) -> list[Site]:
    """The places for faults in a module."""
    found = list[Site]()
    for name, node in _named("", parse(text).body):
        of_class = isinstance(node, cst.ClassDef)
        for operator in operators:
            if of_class == operator.startswith("Class"):
                found += [Site(operator, path, name, replacement) for replacement in OPERATORS[operator](node)]
    return found


def inject(text: str, chosen: Sequence[Site]) -> str:
    """A module with faults at these places; as it was, where they cannot all be put in."""
    tree: cst.CSTNode = parse(text)
    for site in chosen:
        old, new = site.replacement
        before, tree = tree, tree.deep_replace(old, new)  # type: ignore[type-var, assignment]
        if before is tree:
            return text
    assert isinstance(tree, cst.Module)
    try:
        compile(tree.code, "faulty", "exec")
    except SyntaxError:
        return text
    return tree.code


def _named(prefix: str, body: Sequence[cst.CSTNode]) -> Iterator[tuple[str, cst.CSTNode]]:
    for node in body:
        if isinstance(node, cst.FunctionDef):
            yield f"{prefix}{node.name.value}", node
        elif isinstance(node, cst.ClassDef):
            yield node.name.value, node
            yield from _named(f"{node.name.value}.", node.body.body)


def _removed(node: cst.CSTNode, kind: m.BaseMatcherNode | m.OneOf[Any]) -> Iterator[Replacement]:
    yield from ((found, cst.RemoveFromParent()) for found in m.findall(node, kind))


def _swaps(block: cst.IndentedBlock, places: Sequence[int]) -> Iterator[Replacement]:
    for one, other in pairwise(places):
        body = list(block.body)
        body[one], body[other] = body[other], body[one]
        yield block, block.with_changes(body=body)


def _is_docstring(line: cst.CSTNode) -> bool:
    return m.matches(line, m.SimpleStatementLine(body=[m.Expr(m.SimpleString())]))
