"""Train in JAX, with checkpoints by Orbax, so that an interruption changes nothing.

The random key and the place in the data are functions of the step, so weights, optimiser and step are all there is to
save. Set by environment: STEPS, SAVE_EVERY (steps), BATCH, SEED, BROKER_CHECKPOINT_DIR.
"""

import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

try:
    from broker.guest import progress
except ImportError:  # run by hand, without a broker

    def progress(step, total=None):
        pass


STEPS = int(os.environ.get("STEPS", "6000"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "250"))
BATCH = int(os.environ.get("BATCH", "1024"))
SEED = int(os.environ.get("SEED", "7"))
CHECKPOINTS = Path(os.environ.get("BROKER_CHECKPOINT_DIR") or "checkpoints").absolute()
LAYERS = (1, 64, 64, 1)

optimizer = optax.adam(3e-3)


def fresh():
    key = jax.random.key(SEED)
    weights = []
    for wide, narrow in zip(LAYERS, LAYERS[1:]):
        key, own = jax.random.split(key)
        weights.append({"w": jax.random.normal(own, (wide, narrow)) / jnp.sqrt(wide), "b": jnp.zeros(narrow)})
    return {"weights": weights, "optimizer": optimizer.init(weights), "step": jnp.array(0)}


def height(weights, x):
    for layer in weights[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ weights[-1]["w"] + weights[-1]["b"]


@jax.jit
def advance(state):
    """One step on a batch of its own: which one, and what of it, follows from the step."""
    key = jax.random.fold_in(jax.random.key(SEED + 1), state["step"])
    x = jax.random.uniform(key, (BATCH, 1), minval=-3, maxval=3)
    loss, slopes = jax.value_and_grad(lambda weights: jnp.mean((height(weights, x) - jnp.sin(2 * x)) ** 2))(
        state["weights"]
    )
    updates, moments = optimizer.update(slopes, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": moments, "step": state["step"] + 1}, loss


def main():
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    # Orbax writes into a folder beside and renames it, so a checkpoint is whole or not there.
    manager = ocp.CheckpointManager(CHECKPOINTS, options=ocp.CheckpointManagerOptions(max_to_keep=2))
    state, loss = fresh(), 0.0
    if (newest := manager.latest_step()) is not None:
        state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        print(f"resumed at step {newest}", flush=True)
    step = int(state["step"])
    while step < STEPS:
        state, loss = advance(state)
        step += 1
        progress(step, STEPS)
        if step % SAVE_EVERY == 0 or step == STEPS or asked:
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()  # saved in the background, it might not be whole before the machine goes
            print(f"step {step}/{STEPS}  loss {float(loss):.5f}", flush=True)
        if asked and step < STEPS:
            sys.exit(143)
    Path("outputs").mkdir(exist_ok=True)
    leaves = {f"leaf{index}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(state["weights"]))}
    np.savez("outputs/model.npz", **leaves)
    print(f"done: step {step}", flush=True)


if __name__ == "__main__":
    main()
