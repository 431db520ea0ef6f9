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
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from edcache.errors import WhereError
from edcache.labels.arrow import pa, pc
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


def parse_where(text: str, schema: pa.Schema) -> Where:
    """Read a where-string; nothing in it is ever run as Python.

    Args:
        text: at most 10,000 characters, nested at most 50 deep; the grammar is in this module's docstring.
        schema: of the label table, for the names and types of its columns.
    Raises:
        WhereError: `where "label = = 3": column 9: found "=", expected a column or a literal; allowed ...`.
        UnknownLabelError: a name that is no column.
        LabelTypeError: a column compared with a value of another kind.
    """
    if len(text) > _MAX_TEXT:
        raise WhereError(f"where-string of {len(text)} characters; at most {_MAX_TEXT} are read")
    parser = _Parser(text, schema)
    expression = parser.whole()
    return Where(expression, list(parser.columns))


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
_COMPARISONS = frozenset({"==", "=", "!=", "<", "<=", ">", ">="})
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SEARCHES = frozenset({"like", "ilike", "contains", "startswith", "endswith", "regexp", "match"})
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}


class _Literal(NamedTuple):
    value: bool | int | float | str | None


_Operand: TypeAlias = "Column | _Literal | pc.Expression"
_Join: TypeAlias = "Callable[[pc.Expression, pc.Expression], pc.Expression]"


class _Parser:
    """Recursive descent over the tokens; one method per line of the grammar."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self.columns: dict[str, Column] = {}
        self._tokens = list(self._tokenize())
        self._at = 0
        self._depth = 0

    def whole(self) -> pc.Expression:
        operand = self._where()
        if self._next.kind != "end":
            raise self._unexpected("the end, and, or")
        return self._condition(operand, 0)

    # A lone column or literal passes through unchanged: in parentheses it may still be compared.

    def _where(self) -> _Operand:
        return self._joined("or", self._conjunction, lambda left, right: left | right)

    def _conjunction(self) -> _Operand:
        return self._joined("and", self._negation, lambda left, right: left & right)

    def _joined(self, word: str, part: Callable[[], _Operand], join: _Join) -> _Operand:
        start = self._next.start
        first = part()
        if not self._next_is_word(word):
            return first
        terms = [self._condition(first, start)]
        while self._skip(word):
            start = self._next.start
            terms.append(self._condition(part(), start))
        return _folded(terms, join)

    def _negation(self) -> _Operand:
        negations = 0
        while self._skip("not"):
            negations += 1
        start = self._next.start
        operand = self._comparison()
        if not negations:
            return operand
        condition = self._condition(operand, start)
        return ~condition if negations % 2 else condition

    def _comparison(self) -> _Operand:
        start = self._next.start
        left = self._operand()
        if self._next.kind == "op" and self._next.text in _COMPARISONS:
            return self._chain(left)
        if self._skip("is"):
            return self._is_none(left, start)
        negate = self._skip("not")
        if self._skip("in"):
            found = self._column_only(left, "in", start).one_of(self._literals())
            return ~found if negate else found
        if negate:
            raise self._unexpected("in")
        return left

    def _chain(self, left: _Operand) -> pc.Expression:
        terms = []
        while self._next.kind == "op" and self._next.text in _COMPARISONS:
            operator = self._take()
            right = self._operand()
            terms.append(self._compared(left, operator, right))
            left = right
        return _folded(terms, lambda first, second: first & second)

    def _compared(self, left: _Operand, operator: _Token, right: _Operand) -> pc.Expression:
        operation = "==" if operator.text == "=" else operator.text
        for side in (left, right):
            if isinstance(side, _Literal) and side.value is None and operation not in ("==", "!="):
                raise self._error(f"{operation} orders no None", operator.start)
        if isinstance(left, Column) and isinstance(right, Column):
            return left.compare_column(operation, right)
        if isinstance(left, Column) and isinstance(right, _Literal):
            return left.compare(operation, right.value)
        if isinstance(left, _Literal) and isinstance(right, Column):
            return right.compare(_FLIPPED[operation], left.value)
        raise self._error(f'"{operator.text}" compares no column', operator.start)

    def _is_none(self, left: _Operand, start: int) -> pc.Expression:
        negate = self._skip("not")
        if self._next.kind != "name" or self._next.text != "None":
            raise self._unexpected("None (with any other value use ==)")
        self._take()
        missing = self._column_only(left, "is", start).is_null()
        return ~missing if negate else missing

    def _column_only(self, operand: _Operand, word: str, start: int) -> Column:
        if not isinstance(operand, Column):
            raise self._error(f'"{word}" has no column on its left', start)
        return operand

    def _condition(self, operand: _Operand, start: int) -> pc.Expression:
        if isinstance(operand, Column):
            return operand.truth()
        if isinstance(operand, _Literal):
            raise self._error("a literal alone is no condition", start)
        return operand

    def _operand(self) -> _Operand:
        token = self._next
        if token.kind == "name" and token.text.lower() not in _KEYWORDS:
            return self._named()
        if token.kind in ("number", "string") or token.text == "-":
            return self._literal()
        if token.kind == "op" and token.text == "(":
            return self._parenthesis()
        raise self._unexpected("a column or a literal")

    def _parenthesis(self) -> _Operand:
        opening = self._take()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH}", opening.start)
        inner = self._where()
        self._expect(")")
        self._depth -= 1
        return inner

    def _named(self) -> _Operand:
        token = self._next
        if token.text in _CONSTANTS:
            return self._literal()
        self._take()
        if self._next.kind == "op" and self._next.text == "(":
            return self._call(token)
        if self._next.kind in ("string", "number"):
            raise self._unexpected("a comparison")
        return self._column(token)

    def _column(self, token: _Token) -> Column:
        first = token.text.split(".")[0]
        if token.text not in self._schema.names and first != token.text and first in self._schema.names:
            raise self._error(f'"{token.text}" is no column, and columns have no attributes', token.start)
        return self._column_of(token.text)

    def _column_of(self, name: str) -> Column:
        return self.columns.setdefault(name, Column(name, self._schema))

    def _call(self, function: _Token) -> _Operand:
        if function.text not in ("col", "startswith", "contains"):
            raise self._error(f'"{function.text}" is no function here', function.start)
        self._expect("(")
        if function.text == "col":
            name = self._string()
            self._expect(")")
            return self._column_of(name)
        column = self._operand()
        if not isinstance(column, Column):
            raise self._error(
                f'{function.text}() takes a column and a string, {function.text}(name, "x")', function.start
            )
        self._expect(",")
        pattern = self._string()
        self._expect(")")
        return column.matches(function.text, pattern)

    def _literals(self) -> list[object]:
        closing = {"(": ")", "[": "]"}.get(self._next.text if self._next.kind == "op" else "")
        if closing is None:
            raise self._unexpected('a list of literals, as in (0, 1) or ["a", "b"]')
        self._take()
        values: list[object] = []
        while not self._next_is(closing):
            values.append(self._literal().value)
            if not self._next_is(closing):
                self._expect(",")
        self._take()
        return values

    def _literal(self) -> _Literal:
        negative = self._next_is("-")
        if negative:
            self._take()
        token = self._next
        if token.kind == "number":
            number = self._number(self._take())
            return _Literal(-number if negative else number)
        if negative:
            raise self._unexpected("a number")
        if token.kind == "string":
            return _Literal(self._string())
        if token.kind == "name" and token.text in _CONSTANTS:
            return _Literal(_CONSTANTS[self._take().text])
        raise self._unexpected("a literal")

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
        if self._next.kind != "string":
            raise self._unexpected("a string")
        token = self._take()
        return re.sub(r"\\(.)", lambda found: self._unescaped(found, token), token.text[1:-1])

    def _unescaped(self, found: re.Match[str], token: _Token) -> str:
        if found[1] not in _ESCAPES:
            raise self._error(f"the string holds the unknown escape {found[0]}", token.start)
        return _ESCAPES[found[1]]

    # ---- tokens

    def _tokenize(self) -> Iterable[_Token]:
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._error(f"cannot read {self._text[at]!a}", at)
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            at = found.end()
        yield _Token("end", "", end)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _next_is(self, text: str) -> bool:
        return self._next.kind == "op" and self._next.text == text

    def _skip(self, keyword: str) -> bool:
        if not self._next_is_word(keyword):
            return False
        self._at += 1
        return True

    def _next_is_word(self, keyword: str) -> bool:
        return self._next.kind == "name" and self._next.text in (keyword, keyword.upper())

    def _expect(self, text: str) -> None:
        if not self._next_is(text):
            raise self._unexpected(f'"{text}"')
        self._at += 1

    def _unexpected(self, expected: str) -> WhereError:
        token = self._next
        found = "the end" if token.kind == "end" else f'"{token.text:.40}"'
        return self._error(f"found {found}, expected {expected}", token.start)

    def _error(self, problem: str, start: int) -> WhereError:
        if (word := re.match(r"\w+", self._text[start:])) and word[0].lower() in _SEARCHES:
            problem = f'{problem}; text is searched by contains(name, "x") and startswith(name, "x")'
        text = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return WhereError(f'where "{text}": column {start + 1}: {problem}; {_ALLOWED}')


def _folded(terms: Sequence[pc.Expression], join: _Join) -> pc.Expression:
    # As a balanced tree: a thousand terms in a row would nest the expression a thousand deep.
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return join(_folded(terms[:middle], join), _folded(terms[middle:], join))
