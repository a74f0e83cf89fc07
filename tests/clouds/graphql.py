"""So much of GraphQL as a stand-in needs: one operation with fields, aliases, arguments and variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(
    r"[\s,]+|#[^\n]*|(?P<punct>[{}()\[\]:=!@$|&]|\.\.\.)|(?P<name>[_A-Za-z]\w*)"
    r'|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<block>"""[\s\S]*?""")|(?P<text>"(?:\\.|[^"\\\n])*")'
)
WORDS = {"true": True, "false": False, "null": None}


class GraphQLError(Exception):
    """A document or a request that the server does not carry out. code: as its `extensions` say it."""

    def __init__(self, message: str, code: str = "GRAPHQL_VALIDATION_FAILED") -> None:
        super().__init__(message)
        self.message, self.code = message, code


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass
class Selected:
    """One selected field: what the answer calls it, its arguments, its own selection (None for a leaf)."""

    name: str
    alias: str
    arguments: dict[str, Any] = field(default_factory=dict)
    selection: list[Selected] | None = None


class Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise GraphQLError(f"Syntax Error: Cannot parse {text[at : at + 20]!r}", "GRAPHQL_PARSE_FAILED")
            at = found.end()
            if found.lastgroup:
                self.tokens.append((found.lastgroup, found.group()))
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        word = self.peek()
        if not word or (expected and word != expected):
            raise GraphQLError(f"Syntax Error: Expected {expected or 'more'}, found {word!r}.", "GRAPHQL_PARSE_FAILED")
        self.at += 1
        return word

    def operation(self) -> tuple[str, dict[str, str], list[Selected]]:
        """(query or mutation, variable -> its type, the selection)."""
        kind, declared = "query", {}
        if self.peek() != "{":
            kind = self.take()
            if self.peek() not in ("{", "("):
                self.take()
            if self.peek() == "(":
                declared = self._declared()
        return kind, declared, self.selection()

    def _declared(self) -> dict[str, str]:
        self.take("(")
        found = {}
        while self.peek() != ")":
            self.take("$")
            name = self.take()
            self.take(":")
            found[name] = ""
            while self.peek() not in ("$", ")"):
                found[name] += self.take()
        self.take(")")
        return found

    def selection(self) -> list[Selected]:
        self.take("{")
        found = []
        while self.peek() != "}":
            name = alias = self.take()
            if self.peek() == ":":
                self.take()
                name = self.take()
            one = Selected(name, alias)
            if self.peek() == "(":
                self.take()
                while self.peek() != ")":
                    key = self.take()
                    self.take(":")
                    one.arguments[key] = self.value()
                self.take(")")
            if self.peek() == "{":
                one.selection = self.selection()
            found.append(one)
        self.take("}")
        return found

    def value(self) -> Any:
        kind, word = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.take()
        if word == "$":
            return Variable(self.take())
        if word == "[":
            found = []
            while self.peek() != "]":
                found.append(self.value())
            self.take("]")
            return found
        if word == "{":
            made: dict[str, Any] = {}
            while self.peek() != "}":
                key = self.take()
                self.take(":")
                made[key] = self.value()
            self.take("}")
            return made
        if kind == "text":
            import json

            return json.loads(word)
        if kind == "block":
            return word[3:-3]
        if kind == "number":
            return float(word) if any(sign in word for sign in ".eE") else int(word)
        return WORDS.get(word, word)


def resolved(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, list):
        return [resolved(each, variables) for each in value]
    if isinstance(value, dict):
        return {key: resolved(each, variables) for key, each in value.items()}
    return value


def shown(value: Any, selection: list[Selected] | None, kind: str, variables: Mapping[str, Any]) -> Any:
    """The selected part of a value. A dict's keys are its type's fields; a callable is a field with arguments."""
    if isinstance(value, list):
        return [shown(each, selection, kind, variables) for each in value]
    if value is None or selection is None:
        return value
    made = {}
    for one in selection:
        if one.name == "__typename":
            made[one.alias] = kind
            continue
        if one.name not in value:
            raise GraphQLError(f'Cannot query field "{one.name}" on type "{kind}".')
        inner = value[one.name]
        if isinstance(inner, Callable):  # type: ignore[arg-type]
            inner = inner(resolved(one.arguments, variables))
        made[one.alias] = shown(inner, one.selection, one.name, variables)
    return made
