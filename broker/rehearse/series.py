"""Steps read from what programs print: a log's text in, one series of steps per run out. Pure.

Programs print many numbers. Those of one kind are the steps if they never fall within a run: counters of batches and
evaluations start again and again and are told apart by that. Bars are told apart by their label and their total.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker.guest.log import OURS, STARTS

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RANK = re.compile(r"\brank\W{0,2}(\d+)|^\[[a-z]*(\d+)\]:", re.IGNORECASE)
NUMBER = r"['\"]?\s*[:=#]?\s*['\"(\[]?\s*(\d[\d,_]*)"
# "Total optimization steps = 500" and the like: settings, or the steps of something else.
NOT_STEPS = re.compile(
    r"\b(?:total|max|num|number|warm-?up|every|eval\w*|val\w*|test\w*)\W+(?:[a-z]+\W+){0,2}$", re.IGNORECASE
)
LONGEST = 4000  # characters of a line that are looked at
SOME = 2
"""So many different numbers make a series."""


@dataclass(frozen=True, slots=True)
class Series:
    """One run's steps. kind: where they were read, for people. unit: step or epoch. total: None where none was shown.

    spacing: the usual distance between two numbers. line: the one that shows the first.
    """

    kind: str
    unit: str
    first: float
    last: float
    spacing: float = 1.0
    total: int | None = None
    line: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Guess:
    """A way of printing steps. key of a match: what tells apart several counters printed in the same way."""

    kind: str
    pattern: re.Pattern[str]
    unit: str = "step"


# https://github.com/Lightning-AI/pytorch-lightning, callbacks/progress/tqdm_progress.py:
# "Epoch 3:  40%|####  | 12/30 [00:01<00:01, 10.33it/s, v_num=0]"
LIGHTNING = Guess(
    "Lightning's bar", re.compile(r"Epoch\s+(?P<epoch>\d+)(?:/\d+)?:?\s[^|]*\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+)")
)
# https://github.com/tqdm/tqdm, std.py, format_meter: "label:  2%|#   | 12/500 [00:01<…", without a bar "12/500 ["
TQDM = Guess("a tqdm bar", re.compile(r"(?P<step>\d+)/(?P<total>\d+) \["))
BAR = re.compile(r"\d+%\|[^|]*\|\s*$")
GLOBAL = Guess("global_step", re.compile(r"\bglobal[_ ]step" + NUMBER.replace("(\\d", "(?P<step>\\d"), re.IGNORECASE))
PLAIN = Guess(
    "the log",
    re.compile(
        r"(?<![\w-])(?P<label>steps?|iter(?:ation)?s?|updates?)"
        + NUMBER.replace("(\\d", "(?P<step>\\d")
        + r"(?:\s*/\s*(?P<total>\d+))?",
        re.IGNORECASE,
    ),
)
# https://github.com/huggingface/transformers, trainer_callback.py, PrinterCallback: "{'loss': 2.1, 'epoch': 0.16}"; the
# numbers are quoted from version 5 on.
DICT = Guess("the Trainer's log", re.compile(r"\{.*['\"]epoch['\"]:\s*['\"]?(?P<step>\d+(?:\.\d+)?)"), "epoch")
EPOCHS = Guess(
    "the log", re.compile(r"(?<![\w-])epochs?" + NUMBER.replace("(\\d", "(?P<step>\\d"), re.IGNORECASE), "epoch"
)
GUESSES = (GLOBAL, LIGHTNING, TQDM, PLAIN, DICT, EPOCHS)

Counter = tuple[int, str]
"""A guess's place among all, and what tells its counters apart."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One number as it stood in a line of the log."""

    step: float
    total: int | None
    line: str


def last_run(text: str) -> list[str]:
    """The lines that the program has printed since it was last started; the guest's own are left out."""
    lines = re.split(r"[\r\n]+", ESCAPES.sub("", text))
    starts = [n for n, line in enumerate(lines) if line == OURS + STARTS]
    return [line[:LONGEST] for line in lines[starts[-1] if starts else 0 :] if not line.startswith(OURS)]


def read(logs: Sequence[str], pattern: str = "") -> tuple[Series | None, ...]:
    """The series of each run of one program, all of the same kind; None for a run that shows none.

    logs: what each run has printed, in order. pattern: the task's own word on where the step is; then nothing else is
    looked at. Whatever falls within any of the runs is no series.
    """
    guesses = (_given(pattern),) if pattern else GUESSES
    runs = [_counters(last_run(log), guesses) for log in logs]
    best: tuple[Series | None, ...] = (None,) * len(runs)
    for counter in sorted({name for run in runs for name in run}):
        found = _across(counter, runs, guesses[counter[0]])
        if sum(one is not None for one in found) > sum(one is not None for one in best):
            best = found
    return best


def falls(logs: Sequence[str], pattern: str) -> bool:
    """Does the task's own pattern find numbers that go back within a run?"""
    return any(
        not _rises([one.step for one in shown])
        for log in logs
        for shown in _counters(last_run(log), (_given(pattern),)).values()
    )


def _given(pattern: str) -> Guess:
    return Guess("rehearse.step", re.compile(pattern))


def _counters(lines: Sequence[str], guesses: Sequence[Guess]) -> dict[Counter, list[Shown]]:
    found: dict[Counter, list[Shown]] = {}
    for line in lines:
        for place, guess in enumerate(guesses):
            for label, shown in _numbers(line, guess):
                found.setdefault((place, label), []).append(shown)
    return found


def _numbers(line: str, guess: Guess) -> Iterator[tuple[str, Shown]]:
    for match in guess.pattern.finditer(line):
        named = match.groupdict()
        text = named.get("step") if "step" in named else match[1]
        try:
            step = float((text or "").replace(",", "").replace("_", ""))
        except ValueError:
            continue
        total = int(named["total"]) if named.get("total") else None
        before = line[: match.start()]
        if guess in (PLAIN, EPOCHS) and NOT_STEPS.search(before):
            continue
        if guess is LIGHTNING and total:
            step, total = int(named["epoch"] or 0) * total + step, None
        rank = RANK.search(line)
        label = (named.get("label") or "").lower().removesuffix("s")
        if guess is TQDM:
            # Bars of one label with several totals are several bars; numbers in a label count something else.
            label = f"{re.sub(r'[0-9]+', '#', BAR.sub('', before)).strip()}/{total}"
        yield f"{(rank[1] or rank[2]) if rank else ''}|{label}", Shown(step, total, line)


def _across(counter: Counter, runs: Sequence[Mapping[Counter, list[Shown]]], guess: Guess) -> tuple[Series | None, ...]:
    """One counter through all runs; all None where it falls in any of them, or never rises."""
    found: list[Series | None] = []
    several = False
    for run in runs:
        shown, missing = _same_counter(counter, run, guess, runs[0].get(counter))
        if not _rises([one.step for one in shown]):
            return (None,) * len(runs)
        # Nothing done yet is no step: bars begin with it even where the work goes on from elsewhere.
        done = [one for one in shown if one.step > 0]
        steps = [one.step + missing for one in done]
        several |= len({one.step for one in shown}) >= SOME
        gaps = sorted(b - a for a, b in itertools.pairwise(steps) if b > a)
        spacing = gaps[len(gaps) // 2] if gaps else 1.0
        total = next((one.total for one in reversed(shown) if one.total), None)
        found.append(
            Series(guess.kind, guess.unit, steps[0], steps[-1], spacing, total, done[0].line) if steps else None
        )
    return tuple(found) if several else (None,) * len(runs)


def _same_counter(
    counter: Counter, run: Mapping[Counter, list[Shown]], guess: Guess, at_first: list[Shown] | None
) -> tuple[list[Shown], int]:
    """The counter in a run, and what to add to it: a bar over the steps that are left has a smaller total."""
    if counter in run or guess is not TQDM or not at_first or at_first[0].total is None:
        return run.get(counter, []), 0
    label = counter[1].rpartition("/")[0]
    whole = at_first[0].total
    left = [
        (shown[0].total, shown)
        for (place, name), shown in run.items()
        if place == counter[0] and name.rpartition("/")[0] == label and 0 < (shown[0].total or 0) < whole
    ]
    if not left:
        return [], 0
    total, shown = max(left, key=lambda one: one[0] or 0)
    return shown, whole - (total or 0)


def _rises(steps: Sequence[float]) -> bool:
    return all(b >= a for a, b in itertools.pairwise(steps))
