"""Started in the background, in a session of its own, with its output in a file."""

import os
import time

os.makedirs("save", exist_ok=True)
names = sorted(os.listdir("save"), key=lambda n: int(n.split(".")[0].split("_")[1]))
step = int(open(f"save/{names[-1]}").read()) if names else 0
while step < 40:
    time.sleep(0.13)
    step += 1
    print("working on", step, flush=True)
    if step % 5 == 0:
        with open("half", "w") as file:
            file.write(str(step))
        os.replace("half", f"save/state_{step}.txt")
