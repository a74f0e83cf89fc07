"""What the user has answered about a task's secrets, once and for good: `consents.json` in the state folder.

Asked at a terminal by `broker run`; jobs started by cron go by the same answers. The task file's own word wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from broker.errors import ConfigError
from broker.offer import Trust
from broker.task import Task

FILE = "consents.json"


def consented(task: Task, state: Path) -> Task:
    """The task with the answers that were given for it: each says who may read one of its secrets."""
    answers = _read(state).get(task.name)
    if not answers:
        return task
    sealed = task.with_hidden_sealed()
    trust = {name: kind for name, kind in answers.items() if name in sealed.secrets and name not in sealed.trust}
    return replace(sealed, trust={**sealed.trust, **trust}) if trust else task


def remember(state: Path, task: str, answers: Mapping[str, Trust]) -> None:
    """Keep the answers for every later job of a task of that name. answers: secret -> the least trusted reader."""
    with _alone(state):
        known = _read(state)
        known[task] = {**known.get(task, {}), **answers}
        draft = state / f".{FILE}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(state / FILE)


def _read(state: Path) -> dict[str, dict[str, Trust]]:
    path = state / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {task: {name: Trust(kind) for name, kind in answers.items()} for task, answers in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix=f"mend or remove {path}") from error


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(state / f"{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
