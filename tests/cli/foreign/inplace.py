"""Writes its one state file over in place, now and then."""

import os
import time

os.makedirs("state", exist_ok=True)
done = int(open("state/position.dat").read()) if os.path.exists("state/position.dat") else 0
while done < 60:
    done += 1
    time.sleep(0.12)
    print(f"iter {done}/60 residual {1 / done:.4f}", flush=True)
    if done % 24 == 0:
        with open("state/position.dat", "w") as file:
            file.write(str(done))
