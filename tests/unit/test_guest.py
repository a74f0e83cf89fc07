"""The guest's pure parts: how ends are read, masking, time, restarts, the progress record."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import guest
from broker.guest.clock import Clock
from broker.guest.ending import Cause, judge
from broker.guest.log import Log
from broker.guest.mask import SHOWN, Mask, sensitive, too_short
from broker.guest.notice import Notices
from broker.guest.program import Exit
from broker.guest.publisher import Publisher
from broker.guest.restarts import Again, Restarts
from broker.guest.spec import Spec
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.home import Access, Home, JobKeys, folder_url
from broker.snapshot import Snapshotter

NOTICE = Cause("notice", "terminate", "noticed", 1.0)
STOP = Cause("order", "stop", "asked")


def ended(code=0, *, signal=None, oom=0, after_term=False):
    return Exit(code=code, signal=signal, oom=oom, at=0, after_term=after_term, forced=False, seconds=1)


@pytest.mark.parametrize(
    ("exit_", "cause", "noticed", "at_total", "outcome", "reason"),
    [
        # Case 32's matrix; `exit` on a machine that is gone without a word never gets here: it leaves no result.
        (ended(0), None, False, False, "succeeded", "exit 0"),
        (ended(0), None, True, False, "succeeded", "exit 0"),
        (ended(1), None, False, False, "failed", "exit 1"),
        (ended(137, oom=1), None, False, False, "failed", "out of memory"),
        (ended(137, signal=9), None, False, False, "failed", "exit 137 (killed)"),
        (ended(137, signal=9), None, True, False, "moved", "exit 137 (killed), after a notice"),
        (ended(143), None, False, False, "failed", "exit 143"),
        (ended(143, after_term=True), NOTICE, True, False, "moved", "noticed"),
        (ended(247), None, False, False, "failed", "exit 247"),
        (ended(1), None, True, False, "moved", "exit 1, after a notice"),
        (ended(0, after_term=True), NOTICE, True, False, "moved", "noticed"),
        (ended(0, after_term=True), NOTICE, True, True, "succeeded", "its progress had reached the total"),
        (ended(143, after_term=True), NOTICE, True, True, "moved", "noticed"),
        (ended(137, signal=9, after_term=True), NOTICE, True, True, "moved", "noticed"),
        (ended(0, after_term=True), STOP, False, False, "stopped", "asked"),
        (ended(1, after_term=True), Cause("order", "migrate", "m"), False, False, "moved", "m"),
        (ended(1, after_term=True), Cause("order", "silence", "s"), False, False, "moved", "s"),
        (ended(1, after_term=True), Cause("order", "budget", "b"), False, False, "ended", "b"),
        (ended(1, after_term=True), Cause("end_by", "deadline", "d"), False, False, "ended", "d"),
        (ended(1), STOP, False, False, "failed", "exit 1"),
    ],
)
def test_how_an_end_is_read(exit_, cause, noticed, at_total, outcome, reason):
    verdict = judge(exit_, cause, noticed=noticed, at_total=at_total)
    assert verdict.outcome == outcome
    assert verdict.reason.startswith(reason)


@given(
    secret=st.text(alphabet="abX", min_size=4, max_size=9),
    other=st.text(alphabet="abX", min_size=4, max_size=9),
    parts=st.lists(st.text(alphabet="abX\n", max_size=12), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_no_value_passes_the_mask_however_it_is_cut(secret, other, parts, cuts):
    text = secret.join(parts).encode()
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    mask = Mask([secret, other])
    shown = b"".join(mask.feed(text[a:b]) for a, b in pairwise(edges)) + mask.end()
    whole = Mask([secret, other])
    assert shown == whole.feed(text) + whole.end(), "where it is cut makes no difference"
    assert secret.encode() not in shown.replace(SHOWN, b"\0")
    assert other.encode() not in shown.replace(SHOWN, b"\0")


def test_the_mask_holds_back_only_what_may_be_a_value():
    mask = Mask(["secret-value", "on", "line one\nsecond line"])
    assert mask.feed(b"progress 10%\r") == b"progress 10%\r"
    assert mask.feed(b"a sec") == b"a "
    assert mask.feed(b"ret") == b""
    assert mask.feed(b"s on\n") == b"secrets on\n"
    assert mask.feed(b"line one second line\n") == b"*** ***\n"
    assert Mask([]).feed(b"anything") == b"anything"


def test_values_are_masked_as_other_text_quotes_them() -> None:
    secret, key = 'p@ss "wörd"/0005', "-----BEGIN-----\nabcDEFghi0001\n-----END-----"
    mask = Mask([secret, key])
    for shown in (json.dumps(secret), json.dumps({"k": key}, ensure_ascii=False), repr(key), repr({"k": secret})):
        assert b"0005" not in mask.text(shown).encode()
        assert "abcDEFghi0001" not in mask.text(shown)
    url = f"https://u:{quote(secret, safe='')}@host/?p={quote_plus(secret)}&q=kept"
    assert mask.text(url) == "https://u:***@host/?p=***&q=kept"


@pytest.mark.parametrize("secret", ["ab/cd+ef/0007==", "p\"q'$x\\0007", "a<b&c 0007", "wörd/0007"])
def test_what_no_program_writes_on_purpose_is_masked_too(secret: str) -> None:
    """The usual `quote` leaves slashes, others write small hex; HTML, PHP's JSON, bytes, `export -p` and `set -x`."""
    traced = subprocess.run(
        ["bash", "-xc", 'export -p | grep V=; : "$V"'],
        env={"V": secret, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    written = [
        quote(secret),
        quote(secret, safe="").lower(),
        html.escape(secret),
        json.dumps(secret).replace("/", "\\/"),
    ]
    written += [repr(secret.encode()), traced.stdout.decode(), traced.stderr.decode()]
    shown = Mask([secret]).text("\n".join(written))
    assert "0007" not in shown
    assert quote(secret).lower() not in shown


def test_a_checkpoint_folder_that_stays_empty_is_warned_of_once(tmp_path: Path) -> None:
    """A program that saves elsewhere: all that it does would be lost with its machine."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    clock = Clock(end_by=1000.0, end_why="max_hours", frozen_at=900.0)
    status, steps = Status(clock, tmp_path / "progress"), Steps(tmp_path / "progress", None)
    snapshotter = Snapshotter(Home(Access(folder_url(tmp_path / "home"))), JobKeys("j"), 1, folder, quiet=0)

    def looked(patience: float) -> list[str]:
        publisher = Publisher(
            snapshotter, scan=1, every=0, patience=patience, status=status, steps=steps, expired=lambda: None
        )
        for _ in range(3):
            publisher._look()
        return json.loads(status.beat())["warnings"]

    assert looked(60.0) == []
    (folder / "half.tmp").write_text("x")
    assert len(looked(0.0)) == 0, "something is there"
    (folder / "half.tmp").unlink()
    (told,) = looked(0.0)
    assert told.startswith(f"nothing lies in the checkpoint folder {folder} 0 minutes after the program's start")
    (folder / "saved").write_text("x")
    assert len(looked(0.0)) == 1
    assert status.get("seq") == 1


def test_what_counts_as_a_secret() -> None:
    names = ("HF_TOKEN", "wandb_api_key", "DB_PASSWD", "GH_PAT", "MYSQL_PWD", "PASSPHRASE", "NPM_AUTH", "CREDENTIALS")
    assert all(sensitive(name) for name in names)
    assert not any(
        sensitive(name, "/x") for name in ("PATH", "PYTHONPATH", "SSH_AUTH_SOCK", "AUTHOR", "PASSES", "PATIENCE")
    )
    assert sensitive("DATABASE_URL", "postgres://bob:hunter22@db/x")
    assert sensitive("PROXY", "http://:hunter22@proxy:3128")
    assert not sensitive("URL", "http://host:8080/a@b:c@d")
    assert b"hunter22" not in Mask(["postgres://bob:hunter22@db/x"]).feed(b"password=hunter22\n")


def test_the_earlier_of_boot_and_store_time_ends_the_machine():
    now = time.monotonic()
    clock = Clock(end_by=1000.0, end_why="max_hours", frozen_at=900.0, started=now)
    assert clock.deadline == now + 100
    clock.observe(960.0, now)
    assert clock.deadline == now + 40
    clock.observe(700.0, now)
    assert clock.deadline == now + 100
    assert clock.extend(1500.0, "budget")
    assert clock.deadline == now + 600


def test_what_follows_a_failure():
    resumed = Restarts(left=1)
    at_once = {"seconds": 5, "restored": True, "new_snapshot": False}
    assert [resumed.next("x", **at_once) for _ in range(3)] == [Again.SAME, Again.PREVIOUS, None]
    assert resumed.used == 0
    late = Restarts(left=1)
    assert late.next("x", seconds=61, restored=True, new_snapshot=False) is Again.NEWEST
    assert late.next("x", seconds=61, restored=True, new_snapshot=False) is None
    assert Restarts(left=0).next("x", seconds=5, restored=False, new_snapshot=False) is None
    free = Restarts(left=0)
    again = [free.next("x", seconds=61, restored=False, new_snapshot=False, free=True) for _ in range(3)]
    assert (again, free.used, free.left) == ([Again.NEWEST] * 3, 0, 0)
    thrice = Restarts(left=9)
    fresh = {"seconds": 5, "restored": False, "new_snapshot": False}
    assert [thrice.next("x", **fresh) for _ in range(3)] == [Again.NEWEST, Again.NEWEST, None]


def test_progress_keeps_the_first_and_the_last(tmp_path):
    file = tmp_path / "progress"
    assert guest.read_progress(str(file)) is None
    script = (
        "import os, signal\nfrom broker import guest\n"
        "for step in range(5, 5000): guest.progress(step, 9000)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    env = {**os.environ, "BROKER_PROGRESS": str(file), "PYTHONPATH": str(Path(guest.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], env=env, check=False)
    said = guest.read_progress(str(file))
    assert said is not None
    assert (said.first_step, said.step, said.total) == (5, 4999, 9000), "the last step before SIGKILL is known"
    subprocess.run([sys.executable, "-c", script.replace("5000", "7")], env=env, check=False)
    assert guest.read_progress(str(file))[:2] == (5, 6)


def test_progress_is_cheap(tmp_path, monkeypatch):
    monkeypatch.setenv("BROKER_PROGRESS", str(tmp_path / "progress"))
    guest.progress(0, 10)
    best = min(_timed(lambda: [guest.progress(step, 10) for step in range(2000)]) for _ in range(5))
    assert best / 2000 < 20e-6


def _timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_progress_ends_no_training_and_writes_into_no_other_file(tmp_path, monkeypatch):
    monkeypatch.setenv("BROKER_PROGRESS", str(tmp_path / "gone" / "progress"))
    guest.progress(1, 2)
    monkeypatch.setenv("BROKER_PROGRESS", "/dev/full/progress")
    guest.progress(1, 2)
    path = tmp_path / "progress"
    monkeypatch.setenv("BROKER_PROGRESS", str(path))
    guest.progress(1, float("inf"))
    assert guest.read_progress(str(path))[:3] == (1, 1, None)
    fd = guest._open_file[2]
    os.close(fd)  # as a daemon does with all that it has not opened
    guest.progress(2, 9)
    assert guest.read_progress(str(path))[:3] == (1, 2, 9)
    other = os.open(tmp_path / "weights", os.O_RDWR | os.O_CREAT)
    os.dup2(other, guest._open_file[2])
    guest.progress(3.0, 9)
    assert (tmp_path / "weights").read_bytes() == b""
    assert guest.read_progress(str(path))[:3] == (1, 3, 9)
    os.close(other)
    path.write_bytes(b"[1]".ljust(guest.RECORD) + b'{"step": 1}')
    assert guest.read_progress(str(path)) is None


def test_workers_threads_and_forks_say_how_far_they_are(tmp_path):
    script = (
        "import os, threading\nfrom broker import guest\n"
        "threads = [threading.Thread(target=guest.progress, args=(7, 9)) for _ in range(20)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "assert guest.should_stop() is False\n"
        "if os.fork() == 0: guest.progress(8, 9); os._exit(0)\n"
        "os.wait()"
    )
    env = {**os.environ, "BROKER_PROGRESS": str(tmp_path / "p"), "PYTHONPATH": str(Path(guest.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    assert guest.read_progress(str(tmp_path / "p"))[:3] == (7, 8, 9)


def test_outside_a_job_nothing_happens(tmp_path, monkeypatch):
    for name in ("BROKER_PROGRESS", "BROKER_CHECKPOINT_DIR", "BROKER_RESUMED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    guest.progress(1, 2)
    assert not guest.should_stop()
    assert not guest.resumed()
    assert Path(guest.checkpoint_dir()) == tmp_path / "checkpoints"
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoints"]


def test_the_library_runs_on_python_3_8(tmp_path):
    import ast

    source = Path(guest.__file__).read_text()
    for name in ("__init__", "loop", "transformers", "lightning"):
        ast.parse(Path(guest.__file__).with_name(f"{name}.py").read_text(), feature_version=(3, 8))
    old = shutil.which("python3.8")
    if old is None or subprocess.run([old, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("no Python 3.8 here; its grammar was checked")
    package = tmp_path / "broker" / "guest"
    package.mkdir(parents=True)
    (tmp_path / "broker" / "__init__.py").touch()
    (package / "__init__.py").write_text(source)
    script = "from broker import guest; guest.progress(3, 4); print(guest.read_progress('p').step, guest.should_stop())"
    env = {"PYTHONPATH": str(tmp_path), "BROKER_PROGRESS": "p"}
    done = subprocess.run([old, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "3 False\n", done.stderr


def test_the_step_at_a_moment(tmp_path, monkeypatch):
    monkeypatch.setenv("BROKER_PROGRESS", str(tmp_path / "progress"))
    steps = Steps(tmp_path / "progress", total=20)
    assert steps.at(time.time()) is None
    guest.progress(10)
    between = time.time()
    steps.sample()
    guest.progress(20)
    assert (steps.at(between), steps.at(time.time()), steps.at(1.0)) == (10, 20, None)
    assert steps.at_total(), "the task's own total counts where the program names none"


def test_unknown_is_not_no_notice_and_not_a_notice():
    """Case 33: an error of the provider's metadata is neither; it is said once it lasts."""
    answers = iter([None, OSError("401"), None, TimeoutError(), {"at": 5.0, "ends_at": time.time() + 30}])
    warnings: list[str] = []

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    notices = Notices(ask, usual=None, seen=lambda: None, warn=warnings.append)
    assert [notices.look() for _ in range(4)] == [None] * 4
    word = notices.look()
    assert word is not None
    assert 28 < word.ends - time.monotonic() < 31
    assert warnings == []


def test_secrets_that_are_too_short_to_be_masked_are_known():
    key = "-----BEGIN\nMIIEowIBAAKCAQEA\nabc=\n"
    values = {"PIN": "123", "EMPTY": "", "WORD": "hunter2", "KEY": key, "JSON": '{\n "aaaaaaa": 1\n}'}
    assert too_short(values) == ("PIN", "KEY")
    mask = Mask(values.values())
    out = mask.feed("\n".join(values.values()).encode()) + mask.end()
    assert b"123" in out
    assert b"hunter2" not in out


def test_a_log_of_a_silent_store_is_bounded(tmp_path):
    log = Log(tmp_path / "log", Mask([]))
    block = b"x" * (1 << 20)
    for _ in range(70):
        log.write(block)
    assert (tmp_path / "log").stat().st_size <= 66 << 20
    while part := log.part():
        assert len(part) <= 1 << 20
        log.sent(len(part))
    log.write(b"after\n")
    rest = read_out(log)
    assert b"[spotbroker] %d bytes of output were left out here\nxxx" % (4 << 20) in rest
    assert rest.endswith(b"xxxafter\n")


def read_out(log):
    parts = []
    while part := log.part():
        parts.append(part)
        log.sent(len(part))
    return b"".join(parts)


def test_a_burst_keeps_its_end_and_the_words_about_it(tmp_path):
    """A program that floods its output and dies says why in its last lines, which nothing may leave out."""
    log = Log(tmp_path / "log", Mask(["hunter2"]))
    log.say("the program starts")
    for _ in range(70):
        log.write(b"x" * (1 << 20))
    log.say("a word in between")
    for _ in range(3):
        log.write(b"y" * (1 << 20))
    log.write(b"\nTraceback: the last line, hunter2\n")
    log.end()
    log.say("the program has ended")
    assert (tmp_path / "log").stat().st_size <= 69 << 20
    out = read_out(log)
    assert b"\n[spotbroker] a word in between\n" in out
    assert out.count(b"were left out here\n") == 2
    assert out.endswith(b"y\nTraceback: the last line, ***\n[spotbroker] the program has ended\n")
    said = [int(line.split()[1]) for line in out.splitlines() if b"left out" in line]
    shown = out.count(b"x") + out.count(b"y")
    assert sum(said) + shown >= 73 << 20
    log.write(b"more\n")
    assert read_out(log) == b"more\n"


def test_checkpoint_folders(tmp_path):
    def folder(path, *, bare=True):
        raw = json.dumps({"run": "x", "checkpoint": {"path": path}}).encode()
        return Spec.from_bytes(raw).checkpoint_folder(tmp_path, Path("/home/me"), bare=bare)

    assert folder("ckpt") == tmp_path / "work" / "ckpt"
    assert folder("~/ckpt") == Path("/home/me/ckpt")
    assert folder("/data", bare=False) == Path("/data")
    for wrong in ("/data", "../up", "~/../up", "."):
        with pytest.raises(ValueError, match=r"checkpoint\.path"):
            folder(wrong)
