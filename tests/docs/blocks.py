"""The code blocks of a Markdown page and how to run them.

A comment on the line before a block says what is special about it:

    <!-- no-run: REASON -->   only shown; the reason is for the reader of the source
    <!-- exit: 75 -->         the block's last command ends with this code instead of 0
    <!-- file: task.yaml -->  the block is the content of a file that later blocks of the page use

All blocks of one page run in order in one empty folder.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*)[^`]*$")
MARK = re.compile(r"^\s*<!--\s*(?P<word>no-run|exit|file)\b:?\s*(?P<value>.*?)\s*-->\s*$")
RUN = ("console", "bash", "sh", "python", "yaml")
SHOWN = ("text", "toml", "json", "ini", "mermaid", "")


class BlockError(Exception):
    """A page is written wrongly; the text says where."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. line: where its fence is, from 1."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    value: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def code(self) -> int:
        """The exit code that the block should end with."""
        return int(self.value) if self.mark == "exit" else 0

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.mark != "no-run"

    def commands(self) -> str:
        """What a shell runs: of a console block the lines after `$ `, with those that they continue on."""
        if self.language != "console":
            return self.text
        kept: list[str] = []
        going_on = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                kept.append(line[2:])
            elif going_on:
                kept.append(line.removeprefix("> "))
            else:
                continue
            going_on = kept[-1].endswith("\\")
        if not kept:
            raise BlockError(f"{self.where}: a console block without a line that starts with '$ '")
        return "\n".join(kept) + "\n"


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, marks read. Raises BlockError."""
    lines = page.read_text(encoding="utf-8").splitlines()
    mark: tuple[str, str] = ("", "")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := MARK.match(line):
            mark = (found["word"], found["value"])
            if not mark[1]:
                raise BlockError(f"{page}:{number}: {mark[0]} needs {'a reason' if mark[0] == 'no-run' else 'a value'}")
            continue
        opening = FENCE.match(line)
        if opening is None:
            if line.strip() and mark[0]:
                raise BlockError(f"{page}:{number}: a {mark[0]} mark stands right before a block")
            continue
        start, body = number, []
        while number < len(lines) and lines[number].strip() != opening["fence"]:
            body.append(lines[number])
            number += 1
        if number == len(lines):
            raise BlockError(f"{page}:{start}: this block is never closed")
        number += 1
        language = opening["language"]
        if language not in RUN + SHOWN:
            raise BlockError(
                f"{page}:{start}: unknown language {language!r}; known are {', '.join(filter(None, RUN + SHOWN))}"
            )
        yield Block(page, start, language, textwrap.dedent("\n".join(body)) + "\n", *mark)
        mark = ("", "")


LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links, code blocks left out."""
    text = re.sub(r"^( *)(```+).*?^\1\2\s*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (found["target"] for found in LINK.finditer(re.sub(r"`[^`]*`", "", text)))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    titles = (title.lower() for title in HEADING.findall(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
