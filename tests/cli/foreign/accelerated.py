"""As a script around accelerate: save_state into checkpoints/checkpoint_N, a bar called Steps."""

import json
import os
import sys
import time

from formats import bar, safetensors, torch_zip

OUT, TOTAL = "out/checkpoints", 40
os.makedirs(OUT, exist_ok=True)
dirs = sorted((d for d in os.listdir(OUT) if d.startswith("checkpoint_")), key=lambda d: int(d.split("_")[1]))
step = 0
if dirs:
    step = int(dirs[-1].split("_")[1])
    json.loads(open(f"{OUT}/{dirs[-1]}/random_states_0.pkl").read())
sys.stderr.write(bar("Steps: ", 0, TOTAL) + bar("Steps: ", step, TOTAL))
while step < TOTAL:
    time.sleep(0.2)
    step += 1
    sys.stderr.write(bar("Steps: ", step, TOTAL))
    sys.stderr.flush()
    if step % 12 == 0:
        place = f"{OUT}/checkpoint_{step}"
        os.makedirs(place, exist_ok=True)
        safetensors(f"{place}/model.safetensors", [step] * 10)
        torch_zip(f"{place}/optimizer.bin", {})
        open(f"{place}/random_states_0.pkl", "w").write(json.dumps([step]))
