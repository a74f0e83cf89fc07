"""Snapshots through real machines: published, taken up, retried."""

from __future__ import annotations

from guest.placements import holds, wait_for

CHECKPOINT = {"path": "ckpt", "every": None, "keep": 3, "complete": None}
SAVE = (
    'save() { echo "$1" >$BROKER_CHECKPOINT_DIR/.new; mv $BROKER_CHECKPOINT_DIR/.new $BROKER_CHECKPOINT_DIR/step; }\n'
)
WAIT = "while :; do sleep 0.05; done\n"


def first_two(job, **fields):
    """Generation 1 with snapshots 1 and 2, then lost without a word."""
    job.task(
        SAVE + "save 1; until [ -e ../../go ]; do sleep 0.02; done; save 2\n" + WAIT,
        checkpoint=CHECKPOINT,
        **fields,
    )
    placement = job.place(1)
    wait_for(lambda: placement.beat.get("seq") == 1)
    (placement.folder / "go").touch()
    wait_for(lambda: placement.beat.get("seq") == 2)
    placement.kill()


def test_the_next_generation_takes_up_the_newest(job):
    first_two(job)
    job.task('cat $BROKER_CHECKPOINT_DIR/step; echo "resumed $BROKER_RESUMED"', checkpoint=CHECKPOINT)
    placement = job.place(2, order={"after": 1, "go": True})
    placement.until_ended()
    assert placement.own_log == "2\nresumed 1\n"
    assert placement.read(job.keys.parent(2)) == [1, 2]
    assert placement.beat["restored"] == [1, 2]
    assert placement.beat["parent_written"]


def test_a_machine_that_came_back_goes_on_from_its_own(job):
    first_two(job)
    placement = job.placements[0]
    job.task('cat $BROKER_CHECKPOINT_DIR/step; echo "resumed $BROKER_RESUMED"', checkpoint=CHECKPOINT)
    # The same frozen task would wait for ever; the machine's boot script is what counts here.
    from broker.boot import Boot, boot_script

    values = {name: getattr(placement.boot, name) for name in Boot.__slots__}
    (placement.disk / "boot").write_bytes(boot_script(Boot(**{**values, "spec_sha256": job.spec_sha256})))
    placement.start()
    placement.until_ended()
    assert placement.own_log.endswith("2\nresumed 1\n")
    assert placement.result["outcome"] == "succeeded"
    assert placement.closed["seq"] == 2


def test_a_resume_that_fails_at_once(job):
    """The same once more, then the one before, then stop, saying what was tried."""
    first_two(job)
    job.task("cat $BROKER_CHECKPOINT_DIR/step; exit 9", checkpoint=CHECKPOINT)
    placement = job.place(2, order={"after": 1, "go": True})
    result = placement.until_ended()
    assert placement.own_log == "2\n2\n1\n"
    assert (result["outcome"], result["exit"], result["restarts"]) == ("failed", 9, 0)
    assert "the same snapshot again" in result["reason"]
    assert "the snapshot before it" in result["reason"]


def test_restarts_on_errors_are_counted_apart(job):
    job.task("echo run; exit 1", checkpoint=CHECKPOINT)
    placement = job.place(1, restarts_left=1)
    result = placement.until_ended()
    assert placement.own_log == "run\nrun\n"
    assert (result["outcome"], result["restarts"]) == ("failed", 1)


def test_nothing_restorable_is_said_not_started_from_zero(job):
    first_two(job)
    job.home.delete(entry.key for entry in job.home.list(f"{job.keys.root}/blobs"))
    job.task("echo never", checkpoint=CHECKPOINT)
    result = job.place(2, order={"after": 1, "go": True}).until_ended()
    assert result["outcome"] == "failed"
    assert "no snapshot can be restored" in result["reason"]
    assert "submit the task again to start from nothing" in result["fix"]
    assert "never" not in job.placements[1].own_log


def test_manifests_that_have_gone_are_said_not_started_from_zero(job):
    first_two(job)
    job.home.delete(entry.key for entry in job.home.list(job.keys.manifests(1)))
    job.seqs = {1: 2}
    job.task("echo never", checkpoint=CHECKPOINT)
    placement = job.place(2, order={"after": 1, "go": True})
    result = placement.until_ended()
    assert result["outcome"] == "failed"
    assert "up to 1/2, but none is there" in result["reason"]
    assert "never" not in placement.own_log


def test_one_manifest_that_has_gone_is_warned_of(job):
    first_two(job)
    job.home.delete([job.keys.manifest(1, 2)])
    job.seqs = {1: 2}
    job.task("cat $BROKER_CHECKPOINT_DIR/step", checkpoint=CHECKPOINT)
    placement = job.place(2, order={"after": 1, "go": True})
    placement.until_ended()
    assert placement.own_log == "1\n"
    assert "up to 1/2, but the newest there is 1" in placement.beat["warnings"][0]


def test_what_never_becomes_complete_is_warned_of_once(job):
    """A directory without a step in its name, in which a file is written again and again."""
    job.task(
        "cd $BROKER_CHECKPOINT_DIR; mkdir last; echo x >w.tmp; exec 3>>open-1\n"
        "while :; do echo x >>last/log; echo x >&3; sleep 0.05; done",
        checkpoint=CHECKPOINT,
    )
    placement = job.place(1, provider="local", provider_guest="broker_testing.guest")
    wait_for(lambda: len(placement.beat.get("warnings", [])) == 2)
    about = {text.split()[0]: text for text in placement.beat["warnings"]}
    assert set(about) == {"last", "open-1"}
    assert "incomplete for 2 s" in about["last"]
    assert "0.3 s without change are needed; write to a temporary name and rename it into place" in about["last"]
    holds(lambda: len(placement.beat["warnings"]) == 2, 3)
