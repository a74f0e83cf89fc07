"""A program that counts, saves now and then, and betrays a second one running at the same time.

It holds a lock on $GUARD for as long as it lives and writes every step to $TRACE, so that a test can tell afterwards
whether two ran at once, what was lost at each move, and that nothing was counted twice from a wrong place. With
$STUBBORN it does not heed SIGTERM. It does not take its last step while the file $HOLD is there.
"""

import fcntl
import json
import os
import signal
import sys
import time

steps, every, pause = int(os.environ["STEPS"]), int(os.environ["EVERY"]), float(os.environ["PAUSE"])
folder = os.environ["BROKER_CHECKPOINT_DIR"]
path = os.path.join(folder, "state.json")
trace = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
stopping = False


def say(**what):
    what.update(generation=int(os.environ["BROKER_GENERATION"]), pid=os.getpid(), at=time.time())
    os.write(trace, (json.dumps(what) + "\n").encode())


def on_term(_signal, _frame):
    global stopping
    stopping = not os.environ.get("STUBBORN")


def save(step):
    with open(path + ".tmp", "w") as file:
        json.dump({"step": step, "sum": sum(range(step + 1))}, file)
        file.flush()
        os.fsync(file.fileno())
        # A real save takes longer than the tick of the file system's clock, by which a rename is told from a write.
        time.sleep(0.01)
    os.replace(path + ".tmp", path)


signal.signal(signal.SIGTERM, on_term)
guard = open(os.environ["GUARD"], "a")
try:
    fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    say(kind="two at once")
step = 0
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
    if state["sum"] != sum(range(state["step"] + 1)):
        say(kind="corrupt")
    step = state["step"]
try:
    from broker.guest import progress
except ImportError:
    say(kind="no api")

    def progress(step, total=None):
        return None


say(kind="start", step=step)
while step < steps:
    time.sleep(pause)
    if step + 1 < steps or not os.path.exists(os.environ.get("HOLD", "")):
        step += 1
        say(kind="step", step=step)
        progress(step, steps)
        if step % every == 0:
            save(step)
    if stopping:
        save(step)
        say(kind="saved", step=step)
        sys.exit(143)
os.makedirs("out", exist_ok=True)
with open("out/total.txt", "w") as file:
    file.write(str(sum(range(step + 1))))
say(kind="end", step=step)
