"""A guest tells whether the program reads what was restored for it."""

from __future__ import annotations

import pytest
from guest.placements import wait_for

CHECKPOINT = {"path": "ckpt", "every": None, "keep": 3, "complete": None}
FIRST = """
cd $BROKER_CHECKPOINT_DIR
python3 -c "import zipfile; z = zipfile.ZipFile('step-1.pt', 'w'); z.writestr('a/data.pkl', b'1')"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("run", "read"),
    [
        ("sleep 1.5; cat $BROKER_CHECKPOINT_DIR/step-1.pt >/dev/null; sleep 0.3", 1),
        ("ls -l $BROKER_CHECKPOINT_DIR; echo new > $BROKER_CHECKPOINT_DIR/step-2; sleep 1.5", 0),
    ],
)
def test_the_restored_files_are_read_or_not(job, run, read):
    """The guest looks at them too, again and again, and must not take that for the program's reading."""
    job.task(FIRST, checkpoint=CHECKPOINT)
    first = job.place(1)
    wait_for(lambda: first.beat.get("seq") == 1)
    assert first.beat["opened"] is None
    first.kill()
    job.task(run, checkpoint=CHECKPOINT)
    second = job.place(2, order={"after": 1, "go": True})
    second.until_state("running")
    second.until_ended()
    opened = second.beat["opened"]
    assert opened == {"read": read, "of": 1, "first": "step-1.pt" if read else None, "why": ""}
