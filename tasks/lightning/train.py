"""Train with Lightning so that an interruption changes nothing.

Set by environment: STEPS, SAVE_EVERY (seconds), BATCH, SEED, BROKER_CHECKPOINT_DIR.
"""

import os
import warnings
from pathlib import Path

import lightning
import torch
from torch import nn

from broker.guest.lightning import BrokerCallback, newest

STEPS = int(os.environ.get("STEPS", "2500"))
SAVE_EVERY = float(os.environ.get("SAVE_EVERY", "1"))
BATCH = int(os.environ.get("BATCH", "32"))
SEED = int(os.environ.get("SEED", "7"))
CHECKPOINTS = os.environ.get("BROKER_CHECKPOINT_DIR") or "checkpoints"


class Waves(torch.utils.data.Dataset):
    """Pairs of a number and a wave's height there. The example of an index is the same at every start."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        x = torch.rand(1, generator=torch.Generator().manual_seed(index)) * 6 - 3
        return x, torch.sin(2 * x)


class InOrder(torch.utils.data.Sampler):
    """Every index once, from `start` on: a sampler that knows its place needs no skipping after a move."""

    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return iter(range(self.start, len(self)))

    def __len__(self):
        return 1_000_000


class Wave(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.seen = 0

    def training_step(self, batch):
        x, y = batch
        self.seen += len(x)
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]


def main():
    warnings.filterwarnings("ignore")
    lightning.seed_everything(SEED, verbose=False)
    found = newest(CHECKPOINTS)
    seen = torch.load(found, map_location="cpu", weights_only=False)["seen"] if found else 0
    if found:
        print(f"resumed from {Path(found).name}", flush=True)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=STEPS,
        callbacks=[BrokerCallback(CHECKPOINTS, every_s=SAVE_EVERY)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    model = Wave()
    loader = torch.utils.data.DataLoader(Waves(), batch_size=BATCH, sampler=InOrder(seen))
    trainer.fit(model, loader, ckpt_path=found, weights_only=False)
    Path("outputs").mkdir(exist_ok=True)
    torch.save(model.state_dict(), "outputs/model.pt")
    print(f"done: step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
