"""The reader of pages itself: a page that is written wrongly must not pass unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.blocks import BlockError, anchors, blocks, links


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_with_their_marks(tmp_path: Path) -> None:
    console = "```console\n$ broker run \\\n> x\nsaid\n$ true\n```\n"
    text = f"# A\n\n<!-- exit: 75 -->\n{console}\n- b\n\n  ```python\n  1\n  ```\n"
    first, second = blocks(page(tmp_path, text))
    assert (first.language, first.code, first.line) == ("console", 75, 4)
    assert first.commands() == "broker run \\\nx\ntrue\n"
    assert (second.language, second.code, second.text) == ("python", 0, "1\n")


def test_what_is_not_to_run_needs_a_reason(tmp_path: Path) -> None:
    (block,) = blocks(page(tmp_path, "<!-- no-run: costs money -->\n```bash\nbroker run x\n```\n"))
    assert not block.runs
    assert block.value == "costs money"
    with pytest.raises(BlockError, match=r"page\.md:1: no-run needs a reason"):
        list(blocks(page(tmp_path, "<!-- no-run: -->\n```bash\nx\n```\n")))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("```python\n1\n", "never closed"),
        ("```pyhton\n1\n```\n", "unknown language 'pyhton'"),
        ("<!-- exit: 3 -->\ntext\n```bash\n1\n```\n", "right before a block"),
    ],
)
def test_a_page_written_wrongly_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(BlockError, match=match):
        list(blocks(page(tmp_path, text)))


def test_a_console_block_must_have_a_command(tmp_path: Path) -> None:
    (block,) = blocks(page(tmp_path, "```console\nbroker ps\n```\n"))
    with pytest.raises(BlockError, match="without a line"):
        block.commands()


def test_links_and_anchors(tmp_path: Path) -> None:
    path = page(tmp_path, "# One: two-three `x`\n[a](b.md#c) `[n](o)`\n```text\n[no](no)\n```\n![p](q.png)\n[d](e)\n")
    assert list(links(path)) == ["b.md#c", "e"]
    assert anchors(path) == {"one-two-three-x"}
