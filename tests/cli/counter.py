"""A program to move about: counts, saves every few steps, and can be told to be a bad citizen.

Standard library only. HABIT: good; `forgets` (never loads what it saved); `lazy` (never saves); `differs` (its result
depends on being resumed); `mute` (reports no steps); `fails` (exits 3 half-way).
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from broker import guest

HABIT = os.environ.get("HABIT", "good")
STEPS, PAUSE, EVERY = int(os.environ.get("STEPS", "40")), float(os.environ.get("PAUSE", "0.2")), 5
FOLDER = Path(guest.checkpoint_dir())
asked = []


def save(step, word):
    draft, final = FOLDER / ".draft", FOLDER / f"step-{step:05d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    (draft / "state.json").write_text(json.dumps({"step": step, "word": word}))
    (draft / "DONE").touch()
    if not final.exists():
        draft.rename(final)
    for old in sorted(FOLDER.iterdir())[:-3]:
        shutil.rmtree(old, ignore_errors=True)


def load():
    saved = sorted(FOLDER.glob("step-*"))
    if not saved or HABIT == "forgets":
        return 0, "start"
    state = json.loads((saved[-1] / "state.json").read_text())
    return state["step"], state["word"]


signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
step, word = load()
print(f"begin at step {step}", flush=True)
if step and HABIT == "differs":
    word += "!"
while step < STEPS:
    time.sleep(PAUSE)
    step, word = step + 1, hashlib.sha256(word.encode()).hexdigest()
    if HABIT != "mute":
        guest.progress(step, STEPS)
    if HABIT == "fails" and step == STEPS // 2:
        print("something broke", flush=True)
        sys.exit(3)
    if (step % EVERY == 0 or asked) and HABIT != "lazy":
        save(step, word)
    if step % EVERY == 0:
        print(f"step {step}", flush=True)
    if asked:
        sys.exit(143)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/word.txt").write_text(word)
print("done", flush=True)
