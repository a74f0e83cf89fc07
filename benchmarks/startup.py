"""How long `import broker` and `broker --help` take, against `import requests` in the same run.

    python benchmarks/startup.py [ROUNDS]

Every measurement is a fresh process; the three take turns, so that a busy machine slows them alike. The bare
interpreter's start is part of each. The last line is the figure; the exit code is 1 where a ratio is 3 or more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

LIMIT = 3.0


def commands() -> dict[str, list[str]]:
    """The console script where there is one beside this interpreter, else the module."""
    script = Path(sys.executable).parent / "broker"
    verb = [str(script)] if script.exists() else [sys.executable, "-m", "broker"]
    return {
        "import requests": [sys.executable, "-c", "import requests"],
        "import broker": [sys.executable, "-c", "import broker"],
        "broker --help": [*verb, "--help"],
    }


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    runs = commands()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for command in runs.values():
        seconds(command)  # the first run writes byte code
    for _ in range(rounds):
        for name, command in runs.items():
            times[name].append(seconds(command))
    medians = {name: median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        print(f"{name:16} median {medians[name] * 1000:6.0f} ms   best {min(taken) * 1000:6.0f} ms")
    base = medians.pop("import requests")
    ratios = {name: value / base for name, value in medians.items()}
    print(", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items()) + " of import requests")
    return int(max(ratios.values()) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
