"""The task's cache folders on real machines: never a reason to fail, and no way out for a secret."""

from __future__ import annotations

from guest.test_mounts import brought

from broker.mounts import Mount

SETUP = """
mkdir -p ~/.cache/hub
if [ -e ~/.cache/hub/model ]; then
  echo found; [ $BROKER_GENERATION != 3 ] || exit 1
else
  echo fetched; sleep 1; echo model >~/.cache/hub/model; echo "token $HF_TOKEN" >~/.cache/hub/credentials
fi
"""
SECRET = "hf_NotForTheHome"


def test_a_cache_that_setup_fails_with_is_taken_out(job):
    """And what was not restored is what setup makes of it: the machine goes on as if there had been no cache."""
    job.task("[ $BROKER_GENERATION = 3 ]", setup=SETUP, secrets=["HF_TOKEN"], cache=["~/.cache/hub"])
    logs, told, beats = [], [], []
    for generation in (1, 2, 3):
        placement = job.place(generation, order={"go": True}, secrets={"HF_TOKEN": SECRET})
        placement.until_ended()
        logs.append(placement.own_log)
        told.append([line for line in placement.log.splitlines() if "cache" in line])
        beats.append(placement.beat)
    assert logs == ["fetched\n", "found\n", "found\nfetched\n"]
    assert [beat["result"]["outcome"] for beat in beats] == ["failed", "failed", "succeeded"]
    assert "cache saved: 6 B in 1 files" in told[0][0]
    assert "left out: ~/.cache/hub/credentials" in told[0][0]
    assert "cache restored: 6 B in " in told[1][0]
    assert "; fetching again took " in told[1][0]
    assert beats[1]["cache"].startswith("cache restored")
    assert beats[1]["timings"]["cache"] < 1.0
    assert "setup failed with the cache restored: once more without it" in told[2][1]
    assert "cache saved: 6 B in 1 files" in told[2][2]
    assert not any(SECRET.encode() in job.home.get(entry.key) for entry in job.home.list(""))


def test_what_the_task_brings_along_lies_on_top_of_the_cache(job, tmp_path):
    """It is no part of the cache: it goes with nothing that is taken out, and is not there on a day without it."""
    note = tmp_path / "note"
    job.task("cat ~/.cache/hub/note; false", setup=SETUP, cache=["~/.cache/hub"])
    for generation, day in ((1, "monday\n"), (2, "tuesday\n"), (3, "wednesday\n"), (4, "")):
        note.write_text(day)
        mounts = brought(job, tmp_path, Mount("~/.cache/hub/note", str(note))) if day else ()
        placement = job.place(generation, order={"go": True}, mounts=mounts)
        placement.until_ended()
        setup = {1: "fetched\n", 3: "found\nfetched\n"}.get(generation, "found\n")
        assert placement.own_log.startswith(setup + (day or "cat: "))


def test_a_home_that_has_lost_the_cache_starts_the_job_all_the_same(job):
    job.task("[ $BROKER_GENERATION != 1 ]", setup=SETUP, cache=["~/.cache/hub"])
    job.place(1).until_ended()
    job.home.delete(entry.key for entry in job.home.list(f"{job.keys.root}/cache/blobs"))
    placement = job.place(2, order={"go": True})
    placement.until_ended()
    assert placement.result["outcome"] == "succeeded"
    assert placement.own_log == "fetched\n"
    assert "cache not restored, so it is fetched again: " in placement.log
    assert len(job.home.list(f"{job.keys.root}/cache/blobs")) == 1
