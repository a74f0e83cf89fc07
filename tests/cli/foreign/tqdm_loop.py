"""A loop under a progress bar over what is left to do, on stderr with carriage returns."""

import json
import os
import sys
import time

from formats import bar

TOTAL = 40
os.makedirs("ckpt", exist_ok=True)
start = json.load(open("ckpt/state.json"))["done"] if os.path.exists("ckpt/state.json") else 0
sys.stderr.write(bar("", 0, TOTAL - start))
for number in range(start, TOTAL):
    time.sleep(0.13)
    sys.stderr.write(bar("", number + 1 - start, TOTAL - start))
    sys.stderr.flush()
    if number % 4 == 3:
        with open("ckpt/state.json.tmp", "w") as file:
            json.dump({"done": number + 1}, file)
        os.replace("ckpt/state.json.tmp", "ckpt/state.json")
sys.stderr.write("\n")
