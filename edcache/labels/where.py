"""The where-string: comparisons of label columns, written as text.

    parse_where('label in (0, 1) and split == "train"', schema)   a pyarrow expression, and its columns

A where-string is parsed by the grammar below and never evaluated as Python:

    where       = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | comparison
    comparison  = operand { ("==" | "=" | "!=" | "<" | "<=" | ">" | ">=") operand }
                | operand ["not"] "in" ( "(" [literals] ")" | "[" [literals] "]" )
                | operand "is" ["not"] "None"
    operand     = column | literal | "(" where ")"
                | ("startswith" | "contains") "(" column "," string ")"
    column      = name { "." name } | "col" "(" string ")"
    literal     = ["-"] number | string | "True" | "False" | "None"

Keywords may be upper case. A bool column alone is a condition. Dates and times compare with ISO strings.

Truth has three values, as in SQL: a comparison with a missing value is unknown, `not` keeps it unknown,
and a row is chosen only if the whole is true. `is None`, `== None` and a None among the values of `in`
ask for missing values. nan equals nothing, not even nan; -0.0 is 0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from operator import and_, or_
from typing import NamedTuple, TypeAlias

from edcache.base import UnknownLabelError, WhereError
from edcache.format import pa, pc
from edcache.labels.compare import Column

_MAX_TEXT = 10_000
_MAX_DEPTH = 50
_ALLOWED = (
    'allowed are column names, col("odd name"), numbers, strings, True, False, None, == != < <= > >=, '
    'in, not in, is None, is not None, and, or, not, parentheses, startswith(name, "x"), contains(name, "x")'
)


class Where(NamedTuple):
    """A where-string, read: true for the rows that are meant, over `comparable` columns of these names."""

    expression: pc.Expression
    names: list[str]


def parse_where(text: str, schema: pa.Schema, column: Callable[[str], Column] | None = None) -> Where:
    """Read a where-string of at most 10,000 characters, nested at most 50 deep, by this module's grammar.

    column: makes the left side of comparisons of a name; its conditions are joined by `&`, `|` and `~`.
    Raises WhereError, which names the column of text, UnknownLabelError or LabelTypeError.
    """
    if len(text) > _MAX_TEXT:
        raise WhereError(f"where-string of {len(text)} characters; at most {_MAX_TEXT} are read")
    parser = _WhereParser(text, schema, column or (lambda name: Column(name, schema)))
    operand = parser.disjunction()
    if parser.next.kind != "end":
        raise parser.unexpected("the end, and, or")
    return Where(parser.condition(operand, 0), list(parser.columns))


def quoted(text: str) -> str:
    """A text as a where-string has it."""
    return '"' + re.sub(r'[\\"\n\t\r]', lambda match: _WRITTEN[match[0]], text) + '"'


def quoted_name(name: str) -> str:
    """A column's name as a where-string has it: as it is, or col("odd name")."""
    token = _TOKEN.fullmatch(name)
    is_plain = token is not None and token["name"] == name and name.lower() not in _KEYWORDS
    return name if is_plain and name not in _CONSTANTS else f"col({quoted(name)})"


class _Token(NamedTuple):
    kind: str  # "name", "number", "string", "op", "end"
    text: str
    start: int  # 0-based


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<op>==|!=|<=|>=|[=<>()\[\],-])
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"and", "or", "not", "in", "is"})
_CONSTANTS = {"True": True, "False": False, "None": None}
_FLIPPED = {"=": "==", "==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SEARCHES = frozenset({"like", "ilike", "contains", "startswith", "endswith", "regexp", "match"})
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\'": "'", r"\n": "\n", r"\t": "\t", r"\r": "\r"}
_WRITTEN = {text: escape for escape, text in _ESCAPES.items()}


class _Literal(NamedTuple):
    value: bool | int | float | str | None


_Operand: TypeAlias = "Column | _Literal | pc.Expression"
_Join: TypeAlias = "Callable[[pc.Expression, pc.Expression], pc.Expression]"


class _WhereParser:
    """Recursive descent over the tokens, by the grammar of this module.

    A lone column or literal passes through unchanged: in parentheses it may still be compared.
    """

    def __init__(self, text: str, schema: pa.Schema, column: Callable[[str], Column]) -> None:
        self._text = text
        self._schema = schema
        self._make = column
        self._tokens = list(self._split())
        self._at = 0
        self._depth = 0
        self.columns: dict[str, Column] = {}

    def _split(self) -> Iterator[_Token]:
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                at = len(self._text) - len(self._text[at:].lstrip())
                raise self._error(f"cannot read {self._text[at]!a}", at)
            yield _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
            at = match.end()
        yield _Token("end", "", end)

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _next_is(self, *words: str) -> bool:
        """Whether an operator or a keyword is next; no string is either, as its text has its quotes."""
        text = self.next.text
        return text in words or (text.isupper() and text.lower() in words)

    def _skip(self, word: str) -> bool:
        is_there = self._next_is(word)
        self._at += is_there
        return is_there

    def _expect(self, operator: str) -> None:
        if not self._skip(operator):
            raise self.unexpected(f'"{operator}"')

    def unexpected(self, expected: str) -> WhereError:
        token = self.next
        there = "the end" if token.kind == "end" else f'"{token.text:.40}"'
        return self._error(f"found {there}, expected {expected}", token.start)

    def _error(self, problem: str, start: int) -> WhereError:
        if (word := re.match(r"\w+", self._text[start:])) and word[0].lower() in _SEARCHES:
            problem = f'{problem}; text is searched by contains(name, "x") and startswith(name, "x")'
        text = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return WhereError(f'where "{text}": column {start + 1}: {problem}; {_ALLOWED}')

    def disjunction(self) -> _Operand:
        return self._joined("or", or_, lambda: self._joined("and", and_, self._negation))

    def _joined(self, word: str, join: _Join, part: Callable[[], _Operand]) -> _Operand:
        start = self.next.start
        first = part()
        if not self._next_is(word):
            return first
        terms = [self.condition(first, start)]
        while self._skip(word):
            start = self.next.start
            terms.append(self.condition(part(), start))
        return _folded(terms, join)

    def _negation(self) -> _Operand:
        negations = 0
        while self._skip("not"):
            negations += 1
        start = self.next.start
        operand = self._comparison()
        if not negations:
            return operand
        condition = self.condition(operand, start)
        return ~condition if negations % 2 else condition

    def condition(self, operand: _Operand, start: int) -> pc.Expression:
        """An operand that begins at `start` as what is true or false."""
        if isinstance(operand, Column):
            return operand.truth()
        if isinstance(operand, _Literal):
            raise self._error("a literal alone is not a condition", start)
        return operand

    def _comparison(self) -> _Operand:
        start = self.next.start
        left = self._operand()
        if self._next_is(*_FLIPPED):
            return self._chain(left)
        word = "is" if self._skip("is") else "in"
        is_negated = self._skip("not")
        if word == "in" and not self._skip("in"):
            if is_negated:
                raise self.unexpected("in")
            return left
        if word == "is" and not self._skip("None"):
            raise self.unexpected("None (with any other value use ==)")
        if not isinstance(left, Column):
            raise self._error(f'"{word}" has no column on its left', start)
        condition = left.is_null() if word == "is" else left.one_of(self._literals())
        return ~condition if is_negated else condition

    def _chain(self, left: _Operand) -> pc.Expression:
        terms = []
        while self._next_is(*_FLIPPED):
            operator = self._take()
            word = self.next
            try:
                right = self._operand()
            except UnknownLabelError as error:
                if word.kind != "name":
                    raise
                raise UnknownLabelError(f"{error}; write text in quotes: {quoted(word.text)}") from None
            terms.append(self._compared(left, operator, right))
            left = right
        return _folded(terms, and_)

    def _compared(self, left: _Operand, operator: _Token, right: _Operand) -> pc.Expression:
        operation = "==" if operator.text == "=" else operator.text
        has_none = any(isinstance(side, _Literal) and side.value is None for side in (left, right))
        if has_none and operation not in ("==", "!="):
            raise self._error(f"{operation} orders no None", operator.start)
        if isinstance(left, Column) and isinstance(right, Column):
            return left.compare_column(operation, right)
        if isinstance(left, Column) and isinstance(right, _Literal):
            return left.compare(operation, right.value)
        if isinstance(left, _Literal) and isinstance(right, Column):
            return right.compare(_FLIPPED[operation], left.value)
        raise self._error(f'"{operator.text}" compares no column', operator.start)

    def _operand(self) -> _Operand:
        token = self.next
        if token.kind in ("number", "string") or token.text in ("-", *_CONSTANTS):
            return self._literal()
        if self._skip("("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise self._error(f"nested deeper than {_MAX_DEPTH}", token.start)
            inner = self.disjunction()
            self._expect(")")
            self._depth -= 1
            return inner
        if token.kind != "name" or token.text.lower() in _KEYWORDS:
            raise self.unexpected("a column or a literal")
        self._take()
        if self._skip("("):
            return self._call(token)
        if self.next.kind in ("string", "number"):
            raise self.unexpected("a comparison")
        first = token.text.split(".")[0]
        if token.text not in self._schema.names and first != token.text and first in self._schema.names:
            raise self._error(f'"{token.text}" is no column, and columns have no attributes', token.start)
        return self._column(token.text)

    def _column(self, name: str) -> Column:
        return self.columns.setdefault(name, self._make(name))

    def _call(self, function: _Token) -> _Operand:
        name = function.text
        if name == "col":
            column = self._column(self._string())
            self._expect(")")
            return column
        if name not in ("startswith", "contains"):
            raise self._error(f'"{name}" is no function here', function.start)
        operand = self._operand()
        if not isinstance(operand, Column):
            text = f'{name}() takes a column and a string, {name}(name, "x")'
            raise self._error(text, function.start)
        self._expect(",")
        pattern = self._string()
        self._expect(")")
        return operand.matches(name, pattern)

    def _literals(self) -> list[object]:
        if not self._next_is("(", "["):
            raise self.unexpected('a list of literals, as in (0, 1) or ["a", "b"]')
        closing = {"(": ")", "[": "]"}[self._take().text]
        values: list[object] = []
        while not self._skip(closing):
            values.append(self._literal().value)
            if not self._next_is(closing):
                self._expect(",")
        return values

    def _literal(self) -> _Literal:
        sign = -1 if self._skip("-") else 1
        token = self.next
        if token.kind == "number":
            return _Literal(sign * self._number(self._take()))
        if sign < 0:
            raise self.unexpected("a number")
        if token.kind == "string":
            return _Literal(self._string())
        if token.text not in _CONSTANTS:
            raise self.unexpected("a literal")
        return _Literal(_CONSTANTS[self._take().text])

    def _number(self, token: _Token) -> float:
        if token.text.isdigit():
            # Counted first: int() of many digits is slow, or refused by Python itself.
            if len(token.text) > 20 or int(token.text) >= 2**64:
                raise self._error("an integer beyond 64 bits", token.start)
            return int(token.text)
        number = float(token.text)
        if math.isinf(number):
            raise self._error(f"{token.text:.30} is beyond float64", token.start)
        return number

    def _string(self) -> str:
        if self.next.kind != "string":
            raise self.unexpected("a string")
        token = self._take()
        for escape in re.findall(r"\\.", token.text):
            if escape not in _ESCAPES:
                raise self._error(f"the string holds the unknown escape {escape}", token.start)
        return re.sub(r"\\.", lambda match: _ESCAPES[match[0]], token.text[1:-1])


def _folded(terms: Sequence[pc.Expression], join: _Join) -> pc.Expression:
    # As a balanced tree: a thousand terms in a row would nest the expression a thousand deep.
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return join(_folded(terms[:middle], join), _folded(terms[middle:], join))
