"""Train a small character model in PyTorch so that an interruption changes nothing.

What the next step depends on is in the checkpoint: model, optimiser, learning-rate schedule, each worker's random
generator and the place in the data. The batch is the same on any number of workers: each takes its share of it, in
pieces of MICRO_BATCH, and the pieces' gradients are added up.

Runs alone (`python train.py`) or by torchrun on several workers. Set by environment: STEPS, SAVE_EVERY (steps, 0 for as
often as the broker reckons), BATCH, MICRO_BATCH, SEED, TEXT (a file to learn from), BROKER_CHECKPOINT_DIR.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

try:
    from broker import guest
    from broker.guest.loop import every_seconds
except ImportError:  # run by hand, without a broker
    guest, every_seconds = None, lambda: 600.0

STEPS = int(os.environ.get("STEPS", "300"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "0"))
BATCH = int(os.environ.get("BATCH", "32"))
MICRO_BATCH = int(os.environ.get("MICRO_BATCH", "16"))
SEED = int(os.environ.get("SEED", "7"))
CHECKPOINTS = Path(os.environ.get("BROKER_CHECKPOINT_DIR") or "checkpoints")
OUTPUTS = Path("outputs")
RANK, WORKERS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"

LENGTH, WIDTH = 48, 64
KEEP = 2  # checkpoints left in the folder
NAME = re.compile(r"step-(\d+)\.pt")


def text():
    """What is learnt from: the file TEXT, by default a module of Python's own library, so that nothing is fetched."""
    return Path(os.environ.get("TEXT") or argparse.__file__).read_text(encoding="utf-8")


class Model(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, x):
        x = self.embed(x) + self.place.weight
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


class Trainer:
    def __init__(self):
        torch.manual_seed(SEED)
        letters = sorted(set(text()))
        number = {letter: index for index, letter in enumerate(letters)}
        self.data = torch.tensor([number[letter] for letter in text()])
        self.model = Model(len(letters)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.shuffle = torch.Generator().manual_seed(SEED)
        self.step, self.position, self.order, self.loss = 0, 0, self.shuffled(), 0.0
        torch.manual_seed(SEED + 1000 * (RANK + 1))  # dropout differs between workers

    def shuffled(self):
        return torch.randperm((len(self.data) - 1) // LENGTH, generator=self.shuffle)

    def batch(self):
        """The whole batch's windows, the same on every worker."""
        if self.position + BATCH > len(self.order):
            self.order, self.position = self.shuffled(), 0
        chosen = self.order[self.position : self.position + BATCH]
        self.position += BATCH
        return torch.stack([self.data[at * LENGTH : at * LENGTH + LENGTH + 1] for at in chosen.tolist()])

    def advance(self):
        """One optimiser step over the whole batch, whatever the number of workers."""
        self.model.train()
        self.optimizer.zero_grad()
        loss = torch.zeros((), device=DEVICE)
        for piece in self.batch()[RANK::WORKERS].split(MICRO_BATCH):
            piece = piece.to(DEVICE)
            scores = self.model(piece[:, :-1])
            part = nn.functional.cross_entropy(scores.flatten(0, 1), piece[:, 1:].flatten())
            part = part * (len(piece) / BATCH)
            part.backward()
            loss += part.detach()
        if WORKERS > 1:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.step, self.loss = self.step + 1, loss.item()

    def save(self):
        """Every worker calls it; the first one writes."""
        mine = torch.get_rng_state()
        states = [mine]
        if WORKERS > 1:
            states = [torch.empty_like(mine) for _ in range(WORKERS)]
            dist.all_gather(states, mine)
        if RANK == 0:
            write(
                CHECKPOINTS / f"step-{self.step}.pt",
                {
                    "step": self.step,
                    "loss": self.loss,
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict(),
                    "random": states,
                    "shuffle": self.shuffle.get_state(),
                    "order": self.order,
                    "position": self.position,
                },
            )
            for _, path in checkpoints()[KEEP:]:
                path.unlink()

    def resume(self):
        for step, path in checkpoints():
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:
                print(f"{path} cannot be read ({error}): taking the one before", flush=True)
                continue
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            self.shuffle.set_state(state["shuffle"])
            self.step, self.loss = state["step"], state["loss"]
            self.order, self.position = state["order"], state["position"]
            if len(state["random"]) == WORKERS:
                torch.set_rng_state(state["random"][RANK])
            else:
                torch.manual_seed(SEED + self.step + 1000 * (RANK + 1))
            if RANK == 0:
                print(f"resumed at step {step}", flush=True)
            return


def write(path, state):
    """Write a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def checkpoints():
    """Pairs of step and path, newest first. By number: as text, 900 would come after 1000."""
    found = [(int(match[1]), path) for path in CHECKPOINTS.glob("step-*.pt") if (match := NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def agreed(asked, due):
    """What the first worker is due to do, and what any worker was asked to: all save and stop at the same step."""
    if WORKERS == 1:
        return asked, due
    words = torch.tensor([float(asked), float(due) if RANK == 0 else 0.0])
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    return bool(words[0]), bool(words[1])


def main():
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    if WORKERS > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    trainer = Trainer()
    trainer.resume()
    saved = time.monotonic()
    while trainer.step < STEPS:
        trainer.advance()
        if guest and RANK == 0:
            guest.progress(trainer.step, STEPS)
        if SAVE_EVERY:
            due = trainer.step % SAVE_EVERY == 0
        else:
            due = time.monotonic() - saved > every_seconds()
        stop, due = agreed(bool(asked), due)
        if due or stop or trainer.step == STEPS:
            trainer.save()
            saved = time.monotonic()
            if RANK == 0:
                print(f"step {trainer.step}/{STEPS}  loss {trainer.loss:.4f}  {WORKERS} x {BATCH // WORKERS}", flush=True)
        if stop and trainer.step < STEPS:
            sys.exit(143)
    if RANK == 0:
        OUTPUTS.mkdir(exist_ok=True)
        write(OUTPUTS / "model.pt", trainer.model.state_dict())
        words = {"steps": trainer.step, "loss": trainer.loss, "batch": BATCH, "workers": WORKERS}
        (OUTPUTS / "metrics.json").write_text(json.dumps(words) + "\n")
        print(f"done: loss {trainer.loss:.4f}", flush=True)
    if WORKERS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
