"""Saves on SIGTERM only, and takes far longer for it than any notice leaves."""

import os
import signal
import time

from formats import torch_load, torch_zip

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
step = 0
if os.path.exists("results/state.pt"):
    step = torch_load("results/state.pt")["step"]
while step < 240 and not asked:
    time.sleep(0.1)
    step += 1
    print("step", step, flush=True)
if asked:
    os.makedirs("results", exist_ok=True)
    torch_zip("whole", {"step": step})
    with open("whole", "rb") as whole, open("results/state.pt", "wb") as file:
        while piece := whole.read(20):
            file.write(piece)
            file.flush()
            time.sleep(0.1)
    os._exit(1)
