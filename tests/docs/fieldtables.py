"""The tables of docs/write-a-task.md, made from the model of a task file.

PYTHONPATH=.:tests python -m docs.fieldtables     writes them into the page
"""

from __future__ import annotations

import re
from pathlib import Path

from broker.fields import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "write-a-task.md"
MARKED = re.compile(r"(<!-- fields: (?P<name>\S+) -->\n).*?(<!-- /fields -->)", re.DOTALL)
SECTIONS = {"task": "", "workdir": "workdir", "mount": "file_mounts.*", "resources": "resources"}
SECTIONS |= {name: name for name in ("checkpoint", "work", "schedule", "notify", "keep_on_failure", "rehearse")}
SECTIONS |= {"recovery": "resources.job_recovery", "window": "schedule.window"}


def tables() -> dict[str, str]:
    """Every table by its name: one for each map of a task file, and `others` for what is not simply honoured."""
    return {**{name: _table(model) for name, model in SECTIONS.items()}, "others": _others()}


def filled(page: str) -> str:
    """The page with its tables as they should be. Raises KeyError for a table that there is not."""
    made = tables()
    return MARKED.sub(lambda found: f"{found[1]}{made[found['name']]}{found[3]}", page)


def _table(model: str) -> str:
    rows = ["| field | meaning |", "|---|---|"]
    for name, info in MODELS[model].model_fields.items():
        if _word(info)[0] != "ignored":
            rows.append(f"| `{info.alias or name}` | {_cell(info.description or '')} |")
    return "\n".join(rows) + "\n"


def _others() -> str:
    rows = ["| field | here | why |", "|---|---|---|"]
    for outer in ("", "workdir", "file_mounts.*", "resources", "resources.job_recovery", "schedule"):
        for name, info in MODELS[outer].model_fields.items():
            how, why = _word(info)
            if how != "honoured" or why:
                path = ".".join(part for part in (outer, info.alias or name) if part)
                rows.append(f"| `{path}` | {how} | {_cell(why)} |")
    return "\n".join(rows) + "\n"


def _word(info: object) -> tuple[str, str]:
    extra = getattr(info, "json_schema_extra", None) or {}
    return extra.get("how", "honoured"), extra.get("why", "")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
