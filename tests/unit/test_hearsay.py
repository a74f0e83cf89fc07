"""Whatever a machine says of itself, its job and the others of its home are looked after."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_reaction import LIMITS, NOW, instance, job

from broker.hearsay import KINDS, TABLES, heard
from broker.keeping import Keep
from broker.reaction import Beat, Seen, react
from broker.watch import matters

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(KINDS)), inner, max_size=4),
    max_leaves=6,
)
SAID = st.dictionaries(st.sampled_from(sorted(KINDS.keys() | TABLES)), VALUES, max_size=6)


@settings(max_examples=300, deadline=None)
@given(beat=SAID, result=SAID)
def test_no_words_keep_a_job_from_being_decided(beat: dict[str, Any], result: dict[str, Any]) -> None:
    told = heard(json.dumps({**beat, "result": {"outcome": "failed", **result}}).encode())
    assert told is not None
    matters(told)
    limits = replace(LIMITS, keep=Keep(60.0))
    for beats in ({}, {1: Beat({**told, "result": None})}, {1: Beat(told)}):
        after = react(job(), Seen(NOW, instances={1: instance()}, beats=beats, finals={1: told}), limits)
        kept = [entry for entry in after.retiring if entry.kept] if after is not None else []
        assert all(NOW < entry.terminate_at <= NOW + 60.0 for entry in kept), "no longer than the task says"


@pytest.mark.parametrize("raw", [None, b"", b"[]", b"7", b'"n"', b"{", b"[" * 100_000, b"\xff"])
def test_what_is_no_table_is_nothing(raw: bytes | None) -> None:
    assert heard(raw) is None


def test_what_is_sound_is_heard_as_it_was_said() -> None:
    said = {
        "n": 3,
        "state": "running",
        "notice": {"at": 1.5, "ends_at": None, "kind": "spot"},
        "timings": {"save": 2.0},
    }
    said |= {"restored": [1, 4], "warnings": ["so"], "parent_written": True, "new": {"at": "any"}}
    assert heard(json.dumps(said).encode()) == said
    wrong = {
        "n": "x",
        "seq": math.nan,
        "notice": "now",
        "restored": [1],
        "warnings": "so",
        "result": {"at": [], "seq": 1},
        "closed": {"seq": 2.5},
    }
    assert heard(json.dumps(wrong).encode()) == {"result": {"seq": 1}, "closed": {}}
