"""The protocol page names every object of a home, and its example is one that the code reads."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from broker.home import Control, JobKeys

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_every_object_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = JobKeys("J")
    for name, method in inspect.getmembers(keys, inspect.ismethod):
        if name.startswith("_"):
            continue
        names = {"generation": "N", "seq": "SEQ", "sha256": "SHA"}
        arguments = [names[parameter] for parameter in inspect.signature(method).parameters]
        # A manifest's number is padded, so it is named by a number first.
        padded = "SEQ" in arguments
        want = method(0, 0).replace("0" * 8, "SEQ").replace("/0/", "/N/") if padded else method(*arguments)
        assert f"`{want}" in text, f"{name}: {want} is not in {PAGE.name}"
    assert f"`{keys.control}`" in text
    assert f"`{keys.spec}`" in text


def test_the_example_of_control_is_read_and_written_alike() -> None:
    text = PAGE.read_text(encoding="utf-8")
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example
    control = Control.from_bytes(example[1].encode())
    assert Control.from_bytes(control.to_bytes()) == control
    assert (control.live, control.retiring, control.stands(3)) == (2, (1,), False)
    assert control.seqs == {1: 7}
    older = {name: value for name, value in json.loads(example[1]).items() if name != "seqs"}
    assert Control.from_bytes(json.dumps(older).encode()).seqs == {}
