"""What a request to Vast may ask for: filters of a search or a list, and the limits of what is rented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

STORED = {"id", "label", "actual_status", "gpu_name", "verification", "machine_id", "host_id", "is_bid"}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda have, want: have == _like(have, want),
    "neq": lambda have, want: have != _like(have, want),
    "gt": lambda have, want: have is not None and have > float(want),
    "gte": lambda have, want: have is not None and have >= float(want),
    "lt": lambda have, want: have is not None and have < float(want),
    "lte": lambda have, want: have is not None and have <= float(want),
    "in": lambda have, want: have in [_like(have, one) for one in want],
    "notin": lambda have, want: have not in [_like(have, one) for one in want],
}
NOT_ROWS = {"type", "order", "limit", "allocated_storage", "disable_bundling", "rentable", "rented", "external"}


def fits(row: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Does a row fit all filters, `{column: {operator: value}}`?"""
    for column, wishes in filters.items():
        if column in NOT_ROWS:
            continue
        for operator, want in wishes.items():
            if not OPERATORS[operator](row.get(column), want):
                return False
    return True


def invalid(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """What create_instance.yaml's x-input-validation refuses."""
    price, disk = body.get("price"), body.get("disk")
    arguments = "".join([str(body.get("onstart") or ""), *(body.get("args") or []), str(body.get("args_str") or "")])
    env = body.get("env") or {}
    if not body.get("image") and not body.get("template_hash_id"):
        return "invalid_args", "Invalid args: image is required"
    if price is not None and not 0.001 <= price <= 128.0:
        return "invalid_price", "Invalid price"
    if disk is not None and disk < 8.0:
        return "invalid_args", "Invalid args: disk"
    if not isinstance(env, dict):
        return "invalid_args", "Invalid args: env must be an object"
    if len(arguments) > 4096 or len(body.get("label") or "") > 256 or len(body.get("image") or "") > 1024:
        return "invalid_args", "Invalid args: too long"
    if any(len(name) > 256 for name in env) or sum(len(n) + len(str(v)) for n, v in env.items()) > 32_768:
        return "invalid_args", "Invalid args: env"
    return None


def _like(have: Any, want: Any) -> Any:
    """The vendor's client sends numbers as text."""
    number = isinstance(have, int | float) and not isinstance(have, bool)
    return float(want) if number and isinstance(want, str) else want


def rank(value: Any) -> tuple[bool, float, str]:
    """What to sort a column by, whatever is in it."""
    number = isinstance(value, int | float)
    return value is None, float(value) if number else 0.0, "" if number else str(value)
