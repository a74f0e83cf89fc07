"""Training in the small: a perceptron on digits drawn by rule, the same to the last bit however often it is cut.

Standard library only, as the images of rented machines have nothing else.
"""

import json
import os
import random
import signal
import sys
import time

STEPS, EVERY, PAUSE = int(os.environ["STEPS"]), int(os.environ["EVERY"]), float(os.environ["PAUSE"])
SIZE, CLASSES = 64, 10
folder = os.environ["BROKER_CHECKPOINT_DIR"]
path = os.path.join(folder, "model.json")
leaving = False


def leave(_signal, _frame):
    global leaving
    leaving = True


def drawn(source):
    """One noisy digit: (its pixels, what it is)."""
    digit = source.randrange(CLASSES)
    face = random.Random(digit)
    return [float(face.random() < 0.5) if source.random() > 0.1 else source.random() for _ in range(SIZE)], digit


def guessed(model, pixels):
    sums = [sum(w * x for w, x in zip(row, pixels)) for row in model]  # noqa: B905
    return max(range(CLASSES), key=sums.__getitem__)


def save():
    with open(path + ".new", "w") as file:
        json.dump({"step": step, "model": model, "random": source.getstate()}, file)
        file.flush()
        os.fsync(file.fileno())
        time.sleep(0.01)
    os.replace(path + ".new", path)


signal.signal(signal.SIGTERM, leave)
source = random.Random(7)
model, step = [[0.0] * SIZE for _ in range(CLASSES)], 0
if os.path.exists(path):
    with open(path) as file:
        kept = json.load(file)
    model, step = kept["model"], kept["step"]
    version, state, gauss = kept["random"]
    source.setstate((version, tuple(state), gauss))
print(f"start {step}", flush=True)
while step < STEPS:
    time.sleep(PAUSE)
    pixels, digit = drawn(source)
    said = guessed(model, pixels)
    if said != digit:
        for index, pixel in enumerate(pixels):
            model[digit][index] += 0.1 * pixel
            model[said][index] -= 0.1 * pixel
    step += 1
    print(f"step {step}", flush=True)
    if step % EVERY == 0 or leaving:
        save()
    if leaving:
        sys.exit(143)
trial = random.Random(11)
right = sum(guessed(model, pixels) == digit for pixels, digit in (drawn(trial) for _ in range(300)))
os.makedirs("out", exist_ok=True)
with open("out/model.json", "w") as file:
    json.dump({"accuracy": right / 300, "model": model}, file)
