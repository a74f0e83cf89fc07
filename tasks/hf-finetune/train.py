"""Fine-tune a causal language model with Hugging Face's Trainer so that an interruption changes nothing.

Without MODEL a tiny GPT-2 is made on the spot and TEXT is learnt letter by letter, so that nothing is fetched. Set by
environment: MODEL (a hub's name or a folder), TEXT (a file), STEPS, SAVE_STEPS, BATCH (of all GPUs together), SEED,
BROKER_CHECKPOINT_DIR.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from broker.guest.transformers import BrokerCallback, newest

STEPS = int(os.environ.get("STEPS", "150"))
SAVE_STEPS = int(os.environ.get("SAVE_STEPS", "20"))
BATCH = int(os.environ.get("BATCH", "16"))
SEED = int(os.environ.get("SEED", "7"))
MODEL = os.environ.get("MODEL", "")
TEXT = Path(os.environ.get("TEXT") or argparse.__file__)
CHECKPOINTS = os.environ.get("BROKER_CHECKPOINT_DIR") or "checkpoints"
WORKERS = int(os.environ.get("WORLD_SIZE", "1"))
LENGTH = 64


class Windows(torch.utils.data.Dataset):
    """The text in pieces of LENGTH tokens."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens) // LENGTH

    def __getitem__(self, index):
        piece = self.tokens[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": piece, "labels": piece}


def model_and_tokens():
    text = TEXT.read_text(encoding="utf-8")
    if MODEL:
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        return AutoModelForCausalLM.from_pretrained(MODEL), tokenizer(text, return_tensors="pt")["input_ids"][0]
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    shape = {"n_positions": LENGTH, "n_embd": 48, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(letters), **shape)), torch.tensor([number[x] for x in text])


def main():
    torch.manual_seed(SEED)
    model, tokens = model_and_tokens()
    each = int(os.environ.get("BATCH_EACH", "8"))  # of one GPU, at once
    trainer = Trainer(
        model=model,
        train_dataset=Windows(tokens),
        callbacks=[BrokerCallback()],
        args=TrainingArguments(
            output_dir=CHECKPOINTS,
            max_steps=STEPS,
            per_device_train_batch_size=each,
            gradient_accumulation_steps=max(1, BATCH // (each * WORKERS)),  # the batch is the same on any number of GPUs
            learning_rate=3e-3,
            save_strategy="steps",
            save_steps=SAVE_STEPS,
            save_total_limit=2,
            logging_steps=SAVE_STEPS,
            seed=SEED,
            report_to=os.environ.get("REPORT_TO", "none"),
            disable_tqdm=True,
        ),
    )
    trainer.train(resume_from_checkpoint=newest(CHECKPOINTS))
    if trainer.is_world_process_zero():
        outputs = Path("outputs")
        trainer.save_model(str(outputs))
        (outputs / "metrics.json").write_text(json.dumps({"steps": trainer.state.global_step}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
