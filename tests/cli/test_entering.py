"""`broker ssh`, on a machine that is kept since its program has failed; and what all other verbs say of such a one."""

from __future__ import annotations

import shlex
import subprocess

from cli.command import Cli

TASK = """\
name: fails
run: echo "$WORD" >left; exit 3
envs: {WORD: "two words"}
resources: {infra: local}
spot: never
keep_on_failure: {for: 20m, max_usd: 0.50}
notify: {command: 'echo "$SPOTBROKER_EVENT $SPOTBROKER_STATUS" >>TOLD'}
"""


def test_a_run_ends_with_the_failure_and_its_machine_stays_in_hands(cli: Cli) -> None:
    told = cli.folder / "told"
    (cli.folder / "t.yaml").write_text(TASK.replace("TOLD", str(told)))
    ended = cli("run", "t.yaml", "-y", code=100)
    assert "on failure  the machine is kept for 20 m 00 s, which costs 0.0107 USD at most" in ended.stderr
    (row,) = cli.json("ps")
    job = row["id"]
    assert f"  try: broker ssh {job} looks at it, broker stop {job} ends it now" in ended.stderr
    assert "goes on in the background" not in ended.stderr
    assert (row["status"], row["exit_code"]) == ("kept", 100)
    assert row["hourly"] > 0
    assert cli("ps").stderr == "", "some broker sees to its end"
    assert cli("wait", job, code=100).stdout == f"{job} kept\n"

    assert cli("ssh", job, "--", "cat", "left").stdout == "two words\n"
    assert cli("ssh", job, 'echo "$WORD" | tr a-z A-Z; exit 9', code=9).stdout == "TWO WORDS\n"
    typed = subprocess.run(
        shlex.split(cli("ssh", job, "--print").stdout), input="pwd; exit 5", text=True, capture_output=True, check=False
    )
    assert (typed.returncode, typed.stdout.endswith("/spotbroker/work\n")) == (5, True), typed.stderr
    assert "is kept: it has no machine to be moved from" in cli("migrate", job, "-y", code=78).stderr

    assert "nothing of it is left" in cli("stop", job).stderr
    assert "its machine is gone" in cli("ssh", job, code=78).stderr
    cli("ssh", "nobody", code=102)
    assert told.read_text() == "failed kept\n", "told when it failed, and once"
