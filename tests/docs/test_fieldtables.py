"""docs/write-a-task.md has every field, as the model has it."""

from __future__ import annotations

from docs.fieldtables import MARKED, PAGE, filled, tables

from broker.fields import MODELS


def test_the_tables_of_the_page_are_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run: PYTHONPATH=.:tests python -m docs.fieldtables"
    assert sorted(found["name"] for found in MARKED.finditer(page)) == sorted(tables())


def test_every_field_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for model in MODELS.values():
        for name, info in model.model_fields.items():
            assert f"`{info.alias or name}`" in page or f".{info.alias or name}`" in page, name
