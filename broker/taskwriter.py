"""A Task written as the text of a task file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker import images
from broker.keeping import Keep
from broker.resources import Resources
from broker.task import Task


def write(task: Task) -> str:
    """The Task as the text of a task file that reads back as the same Task, but for its source and its warnings.

    Secrets keep their names only: their values are taken from the environment when the file is read.
    """
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted
    from ruamel.yaml.scalarstring import LiteralScalarString as Literal

    def clean(value: Any) -> Any:
        # Quoted, so that other readers of YAML see the same text: plain NO and 1e-4 would turn into other things.
        if isinstance(value, str):
            return Literal(value) if _readable(value) else Quoted(value)
        if isinstance(value, Mapping):
            return {name: clean(inner) for name, inner in value.items() if inner not in (None, "", [], {}, ())}
        if isinstance(value, list | tuple):
            return [clean(inner) for inner in value]
        return value

    data = task.to_json()
    del data["source"], data["warnings"], data["trust"], data["labels"]
    data["resources"] = _resources(task.resources, ordered=data.pop("ordered"))
    if task.rehearse is not None and task.rehearse.resources:
        data["rehearse"]["resources"] = _resources(task.rehearse.resources)
    data["keep_on_failure"] = _keep(task.keep_on_failure)
    data["work"] = _work(data["work"])
    codes = data.pop("recover_on_exit_codes")
    if task.schedule is not None and (window := task.schedule.window) is not None:
        data["schedule"]["window"] = {"from": window.begin, "to": window.end, "start": window.start}
    if codes:
        data["resources"]["job_recovery"] = {"recover_on_exit_codes": codes}
    data["file_mounts"] = {
        m.target: {"source": m.source, "name": m.source or "new", "mode": m.mode} for m in task.file_mounts
    }
    written = clean(data)
    # Empty values are values here, unlike above.
    for holder, values in ((written, task.envs), (written.get("rehearse", {}), getattr(task.rehearse, "envs", {}))):
        if values:
            holder["envs"] = {name: Quoted(value) for name, value in values.items()}
    if task.labels:
        written["resources"]["labels"] = {name: Quoted(value) for name, value in task.labels.items()}
    if task.secrets:
        written["secrets"] = {
            name: {"trust": str(task.trust[name])} if name in task.trust else None for name in sorted(task.secrets)
        }
    yaml = YAML()
    yaml.width = 1_000_000
    out = StringIO()
    yaml.dump(written, out)
    return out.getvalue()


def _keep(keep: Keep | None) -> dict[str, Any] | None:
    return {"for": keep.seconds, "max_usd": keep.max_usd} if keep is not None else None


def _image(name: str | None) -> str | None:
    """An image as a task file names it."""
    found = images.parse(name)
    return f"docker:{found.name}" if found and not found.machine else name


def _work(data: dict[str, Any] | None) -> dict[str, Any] | None:
    """Data in GiB, which a bare number would not be."""
    sized = {name: f"{gib!r}GiB" for name in ("download", "upload") if data and (gib := data[name])}
    return {**data, **sized} if data else None


def _resources(resources: tuple[Resources, ...], *, ordered: bool = False) -> dict[str, Any]:
    """Alternatives as a task file writes them."""
    mixed = any(wish.on_demand for wish in resources)
    wishes = [
        {
            "accelerators": f"{wish.gpu}:{wish.gpu_count}" if wish.gpu else None,
            "cpus": wish.cpus or None,
            "memory": wish.memory or None,
            "disk_size": wish.disk,
            "infra": list(wish.infra),
            "image_id": _image(wish.image),
            "instance_type": wish.instance_type,
            "use_spot": False if wish.on_demand else (True if mixed else None),
        }
        for wish in resources
    ]
    return wishes[0] if len(wishes) == 1 else {"ordered" if ordered else "any_of": wishes}


def _readable(text: str) -> bool:
    """May it be written as a block, line by line as it is?"""
    *lines, last = text.split("\n")
    if not lines or last or not all(line.isprintable() for line in lines):
        return False
    return bool(lines[-1].strip()) and bool(lines[0]) and not lines[0][0].isspace()
