"""Every example of README.md and docs/ runs, and every link leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from docs.blocks import Block, anchors, blocks, links

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 240.0


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def environment(place: Path) -> dict[str, str]:
    """A user's shell whose state and configuration are new; this interpreter's programs come first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPOTBROKER_", "BROKER_"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPOTBROKER_STATE": str(place / "state"),
        "SPOTBROKER_CONFIG": str(place / "config.toml"),
        "NO_COLOR": "1",
    }


def run(block: Block, folder: Path) -> None:
    script = folder.parent / f"block-{block.line}"
    if block.language == "python":
        script.write_text(block.text, encoding="utf-8")
        command = [sys.executable, str(script)]
    else:
        script.write_text(block.commands(), encoding="utf-8")
        command = ["bash", "-eo", "pipefail", str(script)]
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment(folder.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    told = f"{block.where} ended with {done.returncode}, not {block.code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == block.code, told


def load_task(block: Block, folder: Path) -> None:
    """A YAML block that has `run:` is a task file, and must be one that loads."""
    if not any(line.startswith("run:") for line in block.text.splitlines()):
        return
    from broker.task import Task

    path = folder / f"block-{block.line}.yaml"
    path.write_text(block.text, encoding="utf-8")
    try:
        Task.from_yaml(path)
    finally:
        path.unlink()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_example_runs(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for block in blocks(page):
        if block.mark == "file":
            target = folder / block.value
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        if block.language == "yaml" and block.runs:
            load_task(block, folder)
        elif block.runs and block.mark != "file":
            run(block, folder)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.is_relative_to(ROOT / "providers") and not (ROOT / "providers").exists():
            continue  # an installed package has no sources beside it
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken, f"{named(page)}: {broken}"
