"""Train a small network on scikit-learn's handwritten digits so that an interruption changes nothing, not one bit.

What makes a job survive is all here:

- everything the next step depends on is in the checkpoint: weights, the optimiser's moments, the random generator and
  the place in the shuffled data;
- a checkpoint appears whole or not at all: written beside, flushed to disk, then renamed;
- at the start the newest whole checkpoint is taken up;
- on SIGTERM the step is finished, a checkpoint is saved, and the program ends with 143.

Set by environment: STEPS, STEP_WORK (batches per step), SAVE_EVERY (steps), SEED, BROKER_CHECKPOINT_DIR.
"""

import gzip
import json
import os
import re
import signal
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

try:
    from broker.guest import progress
except ImportError:  # run by hand, without a broker

    def progress(step, total=None):
        pass


STEPS = int(os.environ.get("STEPS", "500"))
STEP_WORK = int(os.environ.get("STEP_WORK", "22"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "40"))
SEED = int(os.environ.get("SEED", "7"))
CHECKPOINTS = Path(os.environ.get("BROKER_CHECKPOINT_DIR") or "checkpoints")
OUTPUTS = Path("outputs")

BATCH = 128
LAYERS = (64, 256, 256, 10)
RATE = 1e-3
KEEP = 2  # checkpoints left in the folder
NAME = re.compile(r"step-(\d+)\.npz")


def data():
    """Images as (n, 8, 8) from 0 to 1 and their digits: three quarters to learn from, one to be judged by."""
    # What load_digits() reads; importing all of scikit-learn for it would take longer than many a step.
    package = Path(find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz") as file:
        digits = np.loadtxt(file, delimiter=",")
    images = (digits[:, :-1].reshape(-1, 8, 8) / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], digits[order, -1].astype(np.int64)
    cut = len(images) * 3 // 4
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def shifted(images, random):
    """Each image moved by up to a pixel each way, between the pixels too, and a little darker or lighter."""
    count = len(images)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    offsets = random.uniform(-1.0, 1.0, size=(count, 2)).astype(np.float32)
    whole = np.floor(offsets).astype(np.int64)
    part = offsets - whole
    rows = np.arange(8)[None, :] + 2 + whole[:, :1]
    columns = np.arange(8)[None, :] + 2 + whole[:, 1:]
    each = np.arange(count)[:, None, None]

    def at(down, right):
        return padded[each, (rows + down)[:, :, None], (columns + right)[:, None, :]]

    down, right = part[:, 0, None, None], part[:, 1, None, None]
    moved = (1 - down) * ((1 - right) * at(0, 0) + right * at(0, 1)) + down * ((1 - right) * at(1, 0) + right * at(1, 1))
    return moved * random.uniform(0.8, 1.2, size=(count, 1, 1)).astype(np.float32)


class Trainer:
    """A network of two hidden layers, trained by Adam. `state` is all that the next step depends on."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.random = np.random.default_rng(SEED)
        self.step, self.updates = 0, 0
        self.order, self.position = self.random.permutation(len(images)), 0
        self.values = []
        for wide, narrow in zip(LAYERS, LAYERS[1:]):
            scale = np.sqrt(2.0 / wide)
            self.values.append((self.random.standard_normal((wide, narrow)) * scale).astype(np.float32))
            self.values.append(np.zeros(narrow, np.float32))
        self.first = [np.zeros_like(value) for value in self.values]
        self.second = [np.zeros_like(value) for value in self.values]

    def batch(self):
        if self.position + BATCH > len(self.order):
            self.order, self.position = self.random.permutation(len(self.images)), 0
        chosen = self.order[self.position : self.position + BATCH]
        self.position += BATCH
        return shifted(self.images[chosen], self.random).reshape(BATCH, -1), self.labels[chosen]

    def advance(self):
        """One step: STEP_WORK batches. Returns the mean loss."""
        losses = [self.update(*self.batch()) for _ in range(STEP_WORK)]
        self.step += 1
        return sum(losses) / len(losses)

    def update(self, inputs, labels):
        activations = [inputs]
        for layer in range(0, len(self.values), 2):
            out = activations[-1] @ self.values[layer] + self.values[layer + 1]
            activations.append(np.maximum(out, 0) if layer + 2 < len(self.values) else out)
        scores = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        here = np.arange(len(labels))
        loss = float(-np.log(chances[here, labels] + 1e-12).mean())
        chances[here, labels] -= 1
        error = chances / np.float32(len(labels))
        self.updates += 1
        for layer in range(len(self.values) - 2, -1, -2):
            below = activations[layer // 2]
            slopes = below.T @ error, error.sum(axis=0)
            if layer:
                error = (error @ self.values[layer].T) * (below > 0)
            self.adam(layer, slopes[0])
            self.adam(layer + 1, slopes[1])
        return loss

    def adam(self, index, slope):
        first, second = self.first[index], self.second[index]
        first += np.float32(0.1) * (slope - first)
        second += np.float32(0.001) * (slope * slope - second)
        rate = np.float32(RATE * np.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates))
        self.values[index] -= rate * first / (np.sqrt(second) + np.float32(1e-8))

    def accuracy(self, images, labels):
        out = images.reshape(len(images), -1)
        for layer in range(0, len(self.values), 2):
            out = out @ self.values[layer] + self.values[layer + 1]
            out = np.maximum(out, 0) if layer + 2 < len(self.values) else out
        return float((out.argmax(axis=1) == labels).mean())

    def state(self):
        arrays = {"order": self.order}
        for index, triple in enumerate(zip(self.values, self.first, self.second)):
            for kind, array in zip(("value", "first", "second"), triple):
                arrays[f"{kind}{index}"] = array
        arrays["rest"] = np.array(
            json.dumps(
                {
                    "step": self.step,
                    "updates": self.updates,
                    "position": self.position,
                    "random": self.random.bit_generator.state,
                    "made_with": [SEED, STEP_WORK, BATCH, list(LAYERS)],
                }
            )
        )
        return arrays

    def take_up(self, arrays):
        rest = json.loads(str(arrays["rest"]))
        if rest["made_with"] != [SEED, STEP_WORK, BATCH, list(LAYERS)]:
            raise SystemExit("the checkpoint was made with another SEED, STEP_WORK or network")
        count = len(self.values)
        arrays_of = {
            kind: [arrays[f"{kind}{index}"] for index in range(count)] for kind in ("value", "first", "second")
        }
        self.order = arrays["order"]
        self.values, self.first, self.second = arrays_of["value"], arrays_of["first"], arrays_of["second"]
        self.step, self.updates, self.position = rest["step"], rest["updates"], rest["position"]
        self.random.bit_generator.state = rest["random"]


def write(path, arrays):
    """Write a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def checkpoints():
    """Pairs of step and path, newest first. By number: as text, 900 would come after 1000."""
    found = [(int(match[1]), path) for path in CHECKPOINTS.glob("step-*.npz") if (match := NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def save(trainer):
    write(CHECKPOINTS / f"step-{trainer.step:06d}.npz", trainer.state())
    for _, path in checkpoints()[KEEP:]:
        path.unlink()


def resume(trainer):
    for step, path in checkpoints():
        try:
            with np.load(path) as arrays:
                trainer.take_up(dict(arrays))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            print(f"{path} cannot be read ({error}): taking the one before", flush=True)
            continue
        print(f"resumed at step {step}", flush=True)
        return


def main():
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
    images, labels, unseen, unseen_labels = data()
    trainer = Trainer(images, labels)
    resume(trainer)
    since = time.monotonic()
    while trainer.step < STEPS:
        loss = trainer.advance()
        progress(trainer.step, STEPS)
        if trainer.step % SAVE_EVERY == 0 or trainer.step == STEPS or asked_to_stop:
            save(trainer)
            print(f"step {trainer.step}/{STEPS}  loss {loss:.4f}  {time.monotonic() - since:.1f} s", flush=True)
        if asked_to_stop and trainer.step < STEPS:
            print(f"asked to stop: saved step {trainer.step}", flush=True)
            sys.exit(143)
    accuracy = trainer.accuracy(unseen, unseen_labels)
    write(OUTPUTS / "model.npz", {f"value{index}": value for index, value in enumerate(trainer.values)})
    (OUTPUTS / "metrics.json").write_text(json.dumps({"accuracy": accuracy, "steps": trainer.step}) + "\n")
    print(f"done: {accuracy:.1%} of {len(unseen)} unseen digits read right", flush=True)


if __name__ == "__main__":
    main()
