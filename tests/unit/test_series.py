"""Steps read from logs as programs really print them."""

from __future__ import annotations

import pytest

from broker.rehearse.series import falls, last_run, read

START = "[spotbroker] the program starts\n"


def bar(step: int, total: int = 500, label: str = "") -> str:
    return f"\r{label}{100 * step // total:3d}%|{'█' * (step * 10 // total):10}| {step}/{total} [00:01<00:09, 41.2it/s]"


def lightning(epoch: int, batch: int) -> str:
    return f"\rEpoch {epoch}: {batch * 100 // 30:3d}%|████      | {batch}/30 [00:01<00:01, 10.33it/s, v_num=0]"


def lines(text: str, numbers: range) -> str:
    return "".join(text.format(n) + "\n" for n in numbers)


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        (lines("step {}", range(1, 9)), lines("step {}", range(6, 12)), ("step", 8, 6)),
        (lines("Step: {} loss=0.1", range(1, 9)), lines("Step: {} loss=0.1", range(6, 9)), ("step", 8, 6)),
        (lines("iter {}/1000: loss 2.3", range(1, 9)), lines("iter {}/1000: loss", range(6, 9)), ("step", 8, 6)),
        (lines("{{'global_step': {}}}", range(1, 9)), lines("{{'global_step': {}}}", range(6, 9)), ("step", 8, 6)),
        (lines("2026-12-01 10:00:01 INFO [step {}] x", range(1, 9)), lines("[step {}] x", range(6, 9)), ("step", 8, 6)),
        # nanoGPT prints both; either is right
        ("step 0: train loss 4\niter 0: loss 4\niter 10: loss 3\n", "step 10: x\niter 10: y\n", ("step", 10, 10)),
        # the Trainer's log lines, unquoted and quoted, with evaluations between
        (
            "{'loss': 2.1, 'learning_rate': 5e-05, 'epoch': 0.16}\n{'eval_loss': 2.0, 'epoch': 0.32}\n",
            "{'loss': '1.1', 'epoch': '0.32'}\n",
            ("epoch", 0.32, 0.32),
        ),
        # bars: the Trainer's begins at nothing and jumps; evaluation has one of its own, again and again
        (
            "".join(map(bar, range(0, 130, 10))) + bar(1, 50) + bar(50, 50) + bar(125) + bar(1, 50) + bar(50, 50),
            bar(0) + bar(121) + bar(130),
            ("step", 125, 121),
        ),
        # a bar over what is left
        ("".join(map(bar, range(0, 130, 10))), bar(0, 380) + bar(3, 380) + bar(10, 380), ("step", 120, 123)),
        ("".join(bar(n, 500, "Steps: ") for n in range(9)), bar(6, 500, "Steps: "), ("step", 8, 6)),
        # Lightning's bars begin again each epoch
        (
            "".join(lightning(epoch, batch) for epoch in (0, 1, 2) for batch in (0, 10, 20)),
            "".join(lightning(2, batch) for batch in (0, 10)),
            ("step", 80, 60),
        ),
        # a bar for each epoch and nothing else: the epochs that are printed count
        (
            "".join(f"epoch {e}\n" + "".join(bar(n, 20) for n in (1, 10, 20)) + "\n" for e in (1, 2, 3)),
            "epoch 3\n" + bar(1, 20),
            ("epoch", 3, 3),
        ),
        ("epoch 1 step 5\nepoch 1 step 9\nepoch 2 step 5\n", "epoch 2 step 5\n", ("epoch", 2, 2)),
        # settings are no steps
        (
            "  Total optimization steps = 500\nstep 1\nstep 2\n",
            "  Total optimization steps = 500\nstep 2\n",
            ("step", 2, 2),
        ),
        # ranks run ahead of each other
        (
            "[rank0]: step 1\n[rank0]: step 2\n[rank1]: step 1\n[rank0]: step 3\n[rank1]: step 2\n",
            "[rank1]: step 3\n[rank0]: step 3\n",
            ("step", 3, 3),
        ),
        ("\x1b[32mstep 1\x1b[0m\n\x1b[32mstep 2\x1b[0m\n", "step 2\n", ("step", 2, 2)),
    ],
)  # fmt: skip
def test_steps_are_found(first: str, second: str, want: tuple[str, float, float]) -> None:
    one, two = read([START + first, START + second])
    assert one is not None
    assert two is not None
    assert (one.unit, one.last, two.first) == want


@pytest.mark.parametrize(
    "log",
    [
        "",
        "hello\nworld 17\n",
        "batch 1/20 [\nstep 1\nstep 2\nstep 1\nstep 2\n",  # begins again
        "".join(bar(n, 20) for n in (1, 20, 1, 20)),
        "step 7\n",  # one number is no series
        "saved /ckpt/step-5/model.pt\nsaved /ckpt/step-10/model.pt\n",
        "downloading 12/45 MB\ndownloading 40/45 MB\n",
        "max step 100\neval step 1\neval step 2\n",
    ],
)
def test_what_is_no_series_is_not_taken_for_one(log: str) -> None:
    assert read([START + log]) == (None,)


def test_the_tasks_own_pattern_comes_alone() -> None:
    logs = ["step 1\nseen 10 samples\nseen 20 samples\n", "seen 20 samples\n"]
    one, two = read(logs, r"seen (\d+) samples")
    assert one is not None
    assert two is not None
    assert (one.kind, one.last, two.first) == ("rehearse.step", 20, 20)
    assert read(logs, r"nothing (\d+)") == (None, None)
    assert read(["a=1 n=2,000\na=1 n=3,000\n"], r"a=(\d) n=(?P<step>[\d,]+)")[0].last == 3000  # type: ignore[union-attr]
    assert falls(["seen 9 samples\nseen 3 samples\n"], r"seen (\d+) samples")
    assert not falls(logs, r"seen (\d+) samples")


def test_only_the_last_start_counts_and_only_what_the_program_says() -> None:
    log = (
        "Step 3/5 of setup\n[spotbroker] the program starts\nstep 9\n"
        "[spotbroker] the program has ended: failed: exit 1\n"
        "[spotbroker] restored snapshot 1/2, step 400\n[spotbroker] the program starts\nstep 5\nstep 6\n"
    )
    assert last_run(log) == ["step 5", "step 6", ""]
    (found,) = read([log])
    assert found is not None
    assert (found.first, found.last, found.spacing) == (5, 6, 1)


def test_a_run_that_shows_nothing_does_not_spoil_the_others() -> None:
    one, two, three = read([lines("step {}", range(1, 4)), "", lines("step {}", range(3, 5))])
    assert one
    assert two is None
    assert three


def test_long_logs_are_read_quickly() -> None:
    import time

    log = "".join(f"step {n} loss 0.1 lr 0.2 grad 0.3 some more text of the usual length\n" for n in range(50_000))
    log += "x" * 1_000_000 + "\n" + bar(1) * 10_000
    begun = time.monotonic()
    (found,) = read([log])
    assert found is not None
    assert found.last == 49_999
    assert time.monotonic() - begun < 10
