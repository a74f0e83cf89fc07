"""How soon a replacement is asked for once its predecessor's preemption can be seen.

    python benchmarks/recover.py [MOVES]

One job on the local provider is taken back without notice again and again. Each time counts from the provider's own
moment of the end to the replacement's launch call. The provider is looked at every `traits.poll` seconds, which is
half of that on average before anything can be known; the last line is the median of what comes on top of the poll,
from the look that first showed the end to the launch call. The exit code is 1 where that is a second or more.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from broker import engine
from broker.config import load
from broker.job import submit
from broker.provider import State
from broker.store import open_store
from broker.task import Checkpoint, Resources, Task
from broker_local import LocalProvider
from broker_local.cloud import take_back

PROGRAM = """
import os, time
while True:
    with open(os.path.join(os.environ["BROKER_CHECKPOINT_DIR"], "beat.tmp"), "w") as file:
        file.write(str(time.time()))
    os.replace(file.name, file.name[:-4])
    time.sleep(0.2)
"""


def main() -> int:
    moves = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory(prefix="recover-") as name:
        folder = Path(name)
        zones = "\n".join(
            f"zone-{number} = {{ spot = {0.01 + number / 10_000}, on_demand = 0.05 }}"
            for number in range(2 * moves + 5)
        )
        # More zones than moves, so that no cooldown is waited for.
        (folder / "config.toml").write_text(f"[providers.local.zones]\n{zones}\n")
        (folder / "work").mkdir()
        (folder / "work" / "run.py").write_text(PROGRAM)
        config = load(state=folder / "state", file=folder / "config.toml")
        store = open_store(config.state)
        provider = LocalProvider(config.provider("local"), config.state)
        task = Task(
            name="recover",
            run=f"exec {sys.executable} run.py",
            workdir=folder / "work",
            resources=(Resources(cpus=1, infra=("local",)),),
            checkpoint=Checkpoint("ckpt"),
            max_moves=moves + 5,
        )
        job = submit(task, config=config, store=store)
        with engine.running(config) as live:
            live.drive(job.id)
            for generation in range(1, moves + 1):
                until(lambda n=generation: started(job, n))
                victim = next(m for m in provider.instances() if m.generation == generation)
                take_back(provider.root, victim.id, "vast")
            until(lambda: started(job, moves + 1))
            job.stop(now=True)
            until(lambda: job.refresh().done)
        ended = {m.generation: m.ended_at for m in provider.instances() if m.state is State.TERMINATED}
        seen = {e.generation: e.at for e in job.events() if e.kind == "preempted"}
        sent = {row.generation: row.sent_at for row in job.placements()}
        whole = [sent[n + 1] - ended[n] for n in range(1, moves + 1)]
        beyond = [sent[n + 1] - seen[n] for n in range(1, moves + 1)]
    print(f"from the end to the launch call: median {median(whole):.2f} s, worst {max(whole):.2f} s, {moves} moves")
    print(
        f"looking every {provider.traits.poll:g} s is part of that; the launch call follows the look that shows the end"
    )
    print(f"preemption visible to launch call: median {median(beyond):.3f} s beyond the poll")
    return int(median(beyond) >= 1.0)


def started(job: object, generation: int) -> bool:
    return any(
        row.generation == generation and row.program_at is not None
        for row in job.placements()  # type: ignore[attr-defined]
    )


def until(condition: object, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit("the job did not get on in time")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
