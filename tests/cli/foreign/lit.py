"""As a script around Lightning: a bar for each epoch on stderr, epoch=E-step=S.ckpt and a last.ckpt."""

import glob
import os
import re
import shutil
import sys
import time

from formats import bar, torch_load, torch_zip

OUT, EPOCHS, BATCHES = "lightning_logs/version_0/checkpoints", 5, 8
os.makedirs(OUT, exist_ok=True)
first = torch_load(f"{OUT}/last.ckpt")["epoch"] + 1 if os.path.exists(f"{OUT}/last.ckpt") else 0
for epoch in range(first, EPOCHS):
    for batch in range(BATCHES + 1):
        sys.stderr.write(bar(f"Epoch {epoch}: ", batch, BATCHES).replace("it/s]", "it/s, v_num=0]"))
        sys.stderr.flush()
        time.sleep(0.12)
    sys.stderr.write(bar("Validation DataLoader 0: ", 2, 2) + "\n")
    name = f"{OUT}/epoch={epoch}-step={(epoch + 1) * BATCHES}.ckpt"
    torch_zip(name, {"epoch": epoch, "global_step": (epoch + 1) * BATCHES})
    for old in glob.glob(f"{OUT}/epoch=*.ckpt"):
        if old != name and re.search(r"step=\d+", old):
            os.remove(old)
    shutil.copyfile(name, f"{OUT}/last.ckpt")
print("`Trainer.fit` stopped: `max_epochs=5` reached.")
