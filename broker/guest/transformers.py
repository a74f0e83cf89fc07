"""A callback for Hugging Face's Trainer: it says how far the training is, and saves when the machine is taken back.

::

    from broker.guest.transformers import BrokerCallback

    trainer = Trainer(..., callbacks=[BrokerCallback()])
    trainer.train(resume_from_checkpoint=newest(args.output_dir))

Standard library and transformers only; a job imports it on its machine.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from transformers import TrainerCallback

from broker import guest
from broker.guest.loop import Saves, Workers

__all__ = ["BrokerCallback", "newest"]

STATE = "trainer_state.json"  # what Trainer writes last of all into a checkpoint


def newest(folder: str) -> str | None:
    """The newest whole checkpoint in a Trainer's `output_dir`, None without one: for `resume_from_checkpoint`."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
        match = re.fullmatch(r"checkpoint-(\d+)", name)
        if match and os.path.isfile(os.path.join(folder, name, STATE)):  # noqa: PTH113, PTH118
            found.append((int(match[1]), name))
    return os.path.join(folder, max(found)[1]) if found else None  # noqa: PTH118


class BrokerCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """On notice it saves, if the time left suffices, stops the training and ends the program with 143."""

    def __init__(self) -> None:
        self.saves, self.workers = Saves(), Workers()
        self.stopped = False
        guest.should_stop()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
        guest.progress(state.global_step, state.max_steps)
        if self.workers.stop(state.global_step) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = control.should_save or self.saves.fits()
            control.should_training_stop = True
        if control.should_save:
            self.saves.begin()
        return control

    def on_save(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
        self.saves.end()
        return control

    def on_train_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
        if self.stopped:
            sys.exit(143)
        return control
