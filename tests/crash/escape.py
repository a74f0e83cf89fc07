"""A program that does not want to die: it forks a daemon of its own session without any environment, and heeds nothing.

Both write the time to $TRACE every 20 ms, so that a test can tell when the last of them ended.
"""

import json
import os
import signal
import time

generation = int(os.environ["BROKER_GENERATION"])
trace = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def live(kind):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        os.write(trace, (json.dumps({"kind": kind, "generation": generation, "at": time.time()}) + "\n").encode())
        time.sleep(0.02)


if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        python = "/proc/self/exe"
        code = (
            "import os,time,signal,json\n"
            "for n in (1,2,3,15): signal.signal(n, signal.SIG_IGN)\n"
            "while True:\n"
            f"  line = json.dumps(dict(kind='daemon', generation={generation}, at=time.time()))\n"
            f"  os.write({trace}, (line + '\\n').encode())\n"
            "  time.sleep(0.02)\n"
        )
        os.set_inheritable(trace, True)
        os.execve(os.path.realpath(python), ["python", "-I", "-c", code], {})
    os._exit(0)
live("parent")
