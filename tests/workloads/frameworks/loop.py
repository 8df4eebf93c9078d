# SPDX-License-Identifier: Apache-2.0
"""dp_train's loop, command line and report around the iterations of a program that trains network.py. Knows no
framework's communication."""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import network


def options(patterns, text):
    """dp_train's, as far as they make sense here; `patterns` are the program's ways of training."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--pattern", choices=patterns, required=True)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--compute-ms", type=float, default=0.0, help="extra device time an iteration")
    parser.add_argument("--burn-per-ms", type=float, default=0.0, help="rounds (0: calibrate)")
    parser.add_argument("--comm-mb", type=float, default=0.0, help="size of all gradients together, in 10^6 bytes")
    parser.add_argument("--buckets", type=int, default=1)
    parser.add_argument("--start-at-ns", type=int, default=0, help="CLOCK_MONOTONIC (0: at once)")
    parser.add_argument("--meet", nargs=2, metavar=("FOLDER", "JOBS"),
                        help="begin when so many jobs are ready; they tell each other there")
    parser.add_argument("--json", help="rank 0 writes its measurements there")
    given = parser.parse_args()
    given.rank, given.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return given


class Meeting:
    """What ranks tell each other without a GPU."""

    def __init__(self, given):
        self.given = given
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), given.ranks,
                                   given.rank == 0, timedelta(seconds=120))

    def all(self, key, value):
        """Everybody's value, by rank. Waits for all."""
        self.store.set(f"{key}.{self.given.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{key}.{rank}")) for rank in range(self.given.ranks)]


def calibrated_burner(given, meeting):
    burner = network.Burner(given.burn_per_ms)
    if given.compute_ms and not given.burn_per_ms:
        if given.rank == 0:
            burner.calibrate()
        burner.per_ms = meeting.all("burn", burner.per_ms)[0]
    return burner


def meet(folder, jobs):
    """Waits for the other jobs; frameworks take seconds to start, and not always as many."""
    (Path(folder) / str(os.getpid())).touch()
    end = time.monotonic() + 120
    while len(list(Path(folder).iterdir())) < jobs:
        if time.monotonic() > end:
            raise TimeoutError(f"no {jobs} jobs in {folder} after 120 s")
        time.sleep(0.01)


def run(given, meeting, burner, layers, iteration):
    """`iteration(x, target)` trains on a batch and gives the loss, on the device. Writes the report."""
    batches = network.data(given.rank)
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(given.iterations + 1)]
    losses = []
    torch.cuda.synchronize()
    meeting.all("ready", True)
    if given.meet and given.rank == 0:
        meet(given.meet[0], int(given.meet[1]))
    meeting.all("begins", True)
    time.sleep(max(0, given.start_at_ns - time.monotonic_ns()) / 1e9 if given.start_at_ns else 0)
    start_ns = time.monotonic_ns()
    for number in range(given.warmup + given.iterations):
        if number == given.warmup:
            torch.cuda.synchronize()
            ends[0].record()
            measured_ns = time.monotonic_ns()
        x, target = (tensor.cuda(non_blocking=True) for tensor in batches[number % network.BATCHES])
        loss = iteration(x, target)
        if number >= given.warmup:
            ends[number - given.warmup + 1].record()
        losses.append(loss.item())
    torch.cuda.synchronize()
    end_ns = time.monotonic_ns()
    everybodys = torch.tensor(meeting.all("losses", losses), dtype=torch.float32)
    mean = sum(everybodys[1:], start=everybodys[0]) / given.ranks
    if given.rank == 0 and given.json:
        report = {
            "losses": [f"{loss:.17g}" for loss in mean.tolist()],
            "parameters_hash": network.parameters_hash(layers),
            "iteration_ms": [begin.elapsed_time(end) for begin, end in zip(ends, ends[1:])],
            "burn_per_ms": burner.per_ms, "start_ns": start_ns, "measured_ns": measured_ns, "end_ns": end_ns,
        }
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(report, file)
    meeting.all("done", True)
