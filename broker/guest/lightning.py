"""A callback for Lightning's Trainer: it says how far the training is, and saves when the machine is taken back.

::

    from broker.guest.lightning import BrokerCallback, newest

    trainer = Trainer(..., callbacks=[BrokerCallback(folder)])
    trainer.fit(model, ckpt_path=newest(folder))

Standard library and lightning only; a job imports it on its machine.
"""

from __future__ import annotations

import os
import re
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package's older name
    from pytorch_lightning.callbacks import Callback

from broker import guest
from broker.guest.loop import Saves, Workers

__all__ = ["BrokerCallback", "newest"]

NAME = re.compile(r"step-(\d+)\.ckpt")


def newest(folder: str) -> str | None:
    """The newest of the checkpoints that `BrokerCallback` has written into `folder`, None without one."""
    found = [(int(match[1]), name) for name in _listed(folder) if (match := NAME.fullmatch(name))]
    return os.path.join(folder, max(found)[1]) if found else None  # noqa: PTH118


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208


class BrokerCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Saves `step-N.ckpt` into `folder` every `every_s` seconds, at the end, and on notice if the time left suffices.

    every_s: by default as the broker reckons. keep: how many it leaves there. On notice the program ends with 143.
    """

    def __init__(self, folder: str, *, every_s: float | None = None, keep: int = 2) -> None:
        super().__init__()
        self.folder, self.keep = folder, keep
        self.saves, self.workers = Saves(every_s), Workers()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        step, total = trainer.global_step, int(trainer.estimated_stepping_batches)
        guest.progress(step, total)
        stop = self.workers.stop(step) and step < total
        if self.workers.save(step, self.saves.due()) or (stop and self.saves.fits()):
            self.save(trainer)
        if stop:
            raise SystemExit(143)

    def on_fit_end(self, trainer: Any, *_: Any) -> None:
        self.save(trainer)

    def save(self, trainer: Any) -> None:
        """Whole or not there: written beside and renamed, by the one process that writes."""
        path = os.path.join(self.folder, f"step-{trainer.global_step}.ckpt")  # noqa: PTH118
        beside = os.path.join(self.folder, ".saving.part")  # noqa: PTH118
        self.saves.begin()
        os.makedirs(self.folder, exist_ok=True)  # noqa: PTH103
        trainer.save_checkpoint(beside)
        if trainer.is_global_zero:
            os.replace(beside, path)  # noqa: PTH105
            numbers = sorted(int(match[1]) for name in _listed(self.folder) if (match := NAME.fullmatch(name)))
            for number in numbers[: -self.keep]:
                os.unlink(os.path.join(self.folder, f"step-{number}.ckpt"))  # noqa: PTH108, PTH118
        self.saves.end()
