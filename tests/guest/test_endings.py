"""How a program's end is read, on real machines: protocol.md's table, row by row."""

from __future__ import annotations


def test_success(job):
    job.task("echo hello; echo out > result.txt", outputs=["*.txt"])
    result = job.place().until_ended()
    assert (result["outcome"], result["exit"], result["signal"]) == ("succeeded", 0, None)
    assert list(result["outputs"]) == ["result.txt"]
    placement = job.placements[0]
    assert placement.own_log == "hello\n"
    assert placement.closed["seq"] == 0
    assert placement.beat["state"] == "ended"
    assert placement.beat["result"] == result
    assert job.home.find(job.keys.boot(1)) is None, "the boot object is read once"
