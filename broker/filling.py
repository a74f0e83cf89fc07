"""`${NAME}` in a task file, filled in from the task's envs.

Only where the broker itself reads the text: file_mounts, workdir, checkpoint.path, cache, outputs and home. Never in
run, setup or the values of envs, which are the shell's on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from broker.document import Problem

FIELDS = ("file_mounts", "workdir", "checkpoint.path", "cache", "outputs", "home")
_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


def fill(plain: dict[str, Any], hidden: Callable[[str, str], bool]) -> list[Problem]:
    """Fill in the file's plain map, in place; what cannot be filled in is left as it is and told.

    hidden: is an env, by its name and value, kept from people? Such a value is never put into a path.
    """
    envs = plain.get("envs")
    filler = _Filler(envs if isinstance(envs, dict) else {}, hidden)
    for field in FIELDS:
        *outer, last = field.split(".")
        holder: Any = plain
        for step in outer:
            holder = holder.get(step) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and last in holder:
            holder[last] = filler.value(holder[last], field)
    return filler.problems


class _Filler:
    def __init__(self, envs: Mapping[str, str], hidden: Callable[[str, str], bool]) -> None:
        self.envs, self.hidden = envs, hidden
        self.problems: list[Problem] = []

    def value(self, value: Any, path: str) -> Any:
        """A value with all texts in it filled in, the keys of maps too: a mount's target is one."""
        if isinstance(value, dict):
            filled: dict[str, Any] = {}
            for key, inner in value.items():
                name = self.text(key, f"{path}.{key}")
                if name in filled:
                    self.problems.append(Problem(f"{path}.{key}", f"becomes {name}, which is there already"))
                filled[name] = self.value(inner, f"{path}.{key}")
            return filled
        if isinstance(value, list):
            return [self.value(inner, f"{path}.{index}") for index, inner in enumerate(value)]
        return self.text(value, path) if isinstance(value, str) else value

    def text(self, text: str, path: str) -> str:
        filled = _NAMED.sub(lambda found: self._one(found, path), text)
        if "${" in _NAMED.sub("", text):
            self.problems.append(Problem(path, "only ${NAME} is filled in here, a name and nothing else"))
        return filled

    def _one(self, found: re.Match[str], path: str) -> str:
        name = found[1]
        if name not in self.envs:
            self.problems.append(Problem(path, f"{found[0]}: envs has no {name}", f"add --env {name}=…, or it to envs"))
        elif self.hidden(name, self.envs[name]):
            self.problems.append(Problem(path, f"{found[0]}: {name} is kept from people, so it cannot be in a path"))
        else:
            return self.envs[name]
        return found[0]
