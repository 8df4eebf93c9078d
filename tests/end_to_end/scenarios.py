# SPDX-License-Identifier: Apache-2.0
"""Whole-system scenarios on the virtual GPU, run by end_to_end_test.py (right or wrong) and by the benchmark end-to-end
(how fast). Each returns plain figures; none prints or asserts. A job gets the library by LD_PRELOAD and nothing else."""

import json
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("scripts/lib", "tests/bench")]

import chaos_judge
from chaos_judge import Subject
from intervals import clip, length, phases, read_truth, union
from job import Job, JobError, Workload
from machine import VirtualMachine, monotonic_ns
from windows import communication_streams, read_operations

LIMIT_S = 120
OPTIONS = ["--devices", 2, "--link-gbps", 0.1]
# Enough iterations that the others' arrivals, departures and deaths fall well inside.
USUAL = Workload(compute_ms=40, comm_mb=0.25, iterations=30)


class Bench:
    """What all scenarios share: a job alone, whose losses and amount of work are the others' reference."""

    def __init__(self, build):
        self.build = build
        self.workload = USUAL
        self.reference, self.alone = self.solo()
        # Beside another job the program would find another amount of work in a millisecond.
        self.workload = replace(USUAL, burn_per_ms=self.reference.burn_per_ms)

    def machine(self):
        return VirtualMachine(self.build, OPTIONS)

    def start(self, machine, name, preload=True, delay_ms=None, iterations=USUAL.iterations):
        at = None if delay_ms is None else monotonic_ns() + int(delay_ms * 1e6)
        workload = replace(self.workload, iterations=iterations)
        return Job(name, self.build.program, workload, machine.environment(preload), machine.folder, at)

    def solo(self, preload=False):
        """A job alone: (Result, Phases)."""
        with self.machine() as machine:
            with self.start(machine, "solo", preload) as job:
                result = job.wait(LIMIT_S)
            machine.stop()
            return result, phases(read_truth(machine.truth), result.pids, result.window, len(result.starts))

    def same_losses(self, result):
        """Whether a run's losses are, bit for bit, those of the job alone over the iterations that both made."""
        both = min(len(result.losses), len(self.reference.losses))
        return both > 5 and result.losses[:both] == self.reference.losses[:both]


def both_computing(lanes, first, second, window):
    """Part of the first job's compute time on its devices during which the second computed as well, in [0, 1]."""
    together = alone = 0
    for (device, pid), kinds in lanes.items():
        if pid not in first:
            continue
        mine = union(clip(kinds["compute"], window))
        theirs = union(clip([i for (other, peer), k in lanes.items() if other == device and peer in second
                             for i in k["compute"]], window))
        alone += length(mine)
        together += length(mine) + length(theirs) - length(union(mine + theirs))
    return together / alone if alone else 0.0


def joint_window(results):
    return max(r.window[0] for r in results), min(r.window[1] for r in results)


def two_shells(bench, preload=True):
    """Two jobs, each started on its own. {results, period_ms, both_computing}"""
    with bench.machine() as machine:
        with bench.start(machine, "A", preload) as a, bench.start(machine, "B", preload) as b:
            results = [a.wait(LIMIT_S), b.wait(LIMIT_S)]
        machine.stop()
        lanes = read_truth(machine.truth)
    window = joint_window(results)
    return {"results": results, "period_ms": statistics.mean(r.period_ms(window) for r in results),
            "both_computing": both_computing(lanes, results[0].pids, results[1].pids, window)}


def third_job(bench):
    """A third job joins two and leaves again. {results, third, before, during, after}: part of A's compute time that B
    computed as well, in the three times."""
    with bench.machine() as machine:
        with bench.start(machine, "A", iterations=60) as a, bench.start(machine, "B", iterations=60) as b:
            time.sleep(2.0)
            with bench.start(machine, "C", iterations=8) as c:
                third = c.wait(LIMIT_S)
            results = [a.wait(LIMIT_S), b.wait(LIMIT_S)]
        machine.stop()
        lanes = read_truth(machine.truth)
    window = joint_window(results)
    if not window[0] < third.window[0] < third.window[1] < window[1]:
        raise JobError("the third job did not come and go while the two others ran")
    cuts = [window[0], *third.window, window[1]]
    parts = [both_computing(lanes, results[0].pids, results[1].pids, (s, e)) for s, e in zip(cuts, cuts[1:])]
    return {"results": results, "third": third, **dict(zip(("before", "during", "after"), parts))}


def holder(machine):
    """Process ids of the job that has the turn on some device while another waits there, or none; see `status --json`."""
    done = subprocess.run([str(machine.build.crossover), "status", "--json", "--dir", str(machine.shared_folder)],
                          env=machine.environment(), capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise JobError(f"crossover status ended with {done.returncode}: {done.stderr.strip()}")
    for device in json.loads(done.stdout)["devices"]:
        turn = device["turn"]
        if turn and turn["lease_left_ms"] is not None:
            return [client["pid"] for client in device["clients"] if client["job"] == turn["job"]]
    return []


def kill_holder(bench):
    """The job that has the turn is killed with SIGKILL. {survivor, killed, gap_ms, usual_gap_ms}: the survivor's longest
    time without compute on a device after the kill, and the longest of that kind before it."""
    with bench.machine() as machine:
        with bench.start(machine, "A", iterations=60) as a, bench.start(machine, "B", iterations=60) as b:
            time.sleep(2.0)
            victim, end = None, time.monotonic() + 30
            while victim is None and time.monotonic() < end:
                pids = holder(machine)
                victim = next((job for job in (a, b) if set(pids) & set(job.pids)), None)
            if victim is None:
                raise JobError("no job had the turn while another waited, within 30 s")
            killed_at = monotonic_ns()
            victim.stop(signal.SIGKILL)
            survivor = (b if victim is a else a).wait(LIMIT_S)
        machine.stop()
        lanes = read_truth(machine.truth)
    if not survivor.window[0] < killed_at < survivor.window[1]:
        raise JobError("the kill did not fall into the survivor's measured iterations")
    return {"survivor": survivor, "killed": victim.name,
            "usual_gap_ms": longest_gap_ms(lanes, survivor.pids, (survivor.window[0], killed_at)),
            "gap_ms": longest_gap_ms(lanes, survivor.pids, (killed_at, survivor.window[1]))}


def patterns_in_turns(build, pattern, compute_ms=20, iterations=30):
    """Two jobs of a way of training (tests/workloads/patterns) in turns. {alone, results, verdict, passed}: what the judge
    of turns says of all compute (tests/bench/chaos_judge.py), and how many small pieces passed without a turn."""
    program = build.folder / "tests" / "workloads" / "patterns" / "patterns"
    workload = Workload(compute_ms, 0.25, iterations, extra=("--pattern", pattern))
    with VirtualMachine(build, OPTIONS) as machine:
        with Job("alone", program, workload, machine.environment(), machine.folder) as job:
            alone = job.wait(LIMIT_S)
    workload = replace(workload, burn_per_ms=alone.burn_per_ms)
    with VirtualMachine(build, OPTIONS) as machine:
        with recorded_turns(machine) as lines, ExitStack() as stack:
            # A start long enough that both have joined before either computes.
            start_at = monotonic_ns() + 3 * 1_000_000_000
            jobs = [stack.enter_context(Job(name, program, workload, machine.environment(True, CROSSOVER_JOB=name),
                                            machine.folder, start_at)) for name in ("A", "B")]
            results = [job.wait(LIMIT_S) for job in jobs]
        machine.stop()
        compute = held_compute(machine.truth)
    segments, names = chaos_judge.read_ring(lines)
    subjects = [Subject(r.name, [(pid, 0, chaos_judge.NEVER) for pid in r.pids], (r.name,)) for r in results]
    verdict = chaos_judge.judge(subjects, segments, names, compute)
    return {"alone": alone, "results": results, "verdict": verdict,
            "passed": sum(len(segment.passed) for segment in segments.values())}


def hidden_beside_exposed(build, iterations=45):
    """Two jobs on one link with the gate in the GPU's queues: A's communication is mostly hidden, B's exposed and twice as
    long. {alone, results, shared}: of each of B's collectives on a device, the part of its time in which A communicated."""
    a = Workload(40, 0.25, iterations, buckets=4, overlap=True)
    b = Workload(20, 0.5, iterations)
    options = [*OPTIONS, "--shared-link"]
    alone = []
    for workload in (a, b):
        with VirtualMachine(build, options) as machine:
            with Job("alone", build.program, workload, machine.environment(), machine.folder) as job:
                alone.append(job.wait(LIMIT_S))
    with VirtualMachine(build, options) as machine:
        with ExitStack() as stack:
            start_at = monotonic_ns() + 2 * 1_000_000_000
            environment = machine.environment(True, CROSSOVER_GATE="stream")
            jobs = [stack.enter_context(Job(name, build.program, replace(workload, burn_per_ms=alone[0].burn_per_ms),
                                            environment, machine.folder, start_at))
                    for name, workload in (("A", a), ("B", b))]
            results = [job.wait(LIMIT_S) for job in jobs]
        machine.stop()
        lanes = read_truth(machine.truth)
    shared = []
    window = joint_window(results)
    for (device, pid), kinds in lanes.items():
        if pid in results[1].pids:
            beside = union([i for (other, peer), k in lanes.items() if other == device and peer in results[0].pids
                            for i in k["communicate"]])
            shared += [length(clip(beside, each)) / (each[1] - each[0]) for each in kinds["communicate"]
                       if window[0] <= each[0] and each[1] <= window[1]]
    return {"alone": alone, "results": results, "shared": shared}


def held_compute(truth):
    """As chaos_judge.read_compute(), without the kernels of communication streams, which are never held."""
    beside = {client: communication_streams(rows) for client, rows in read_operations(truth).items()}
    with open(truth, encoding="utf-8") as log:
        return chaos_judge.read_compute(line for line in log if not beside_collectives(json.loads(line), beside))


def beside_collectives(row, beside):
    return row["stream"] in beside[row["device"], row["pid"]]


@contextmanager
def recorded_turns(machine):
    """Gives a list that holds the lines of chaos_recorder at the end."""
    lines = []
    with open(machine.folder / "turns.jsonl", "w+", encoding="utf-8") as out:
        command = [machine.build.folder / "tests" / "chaos" / "chaos_recorder", machine.shared_folder]
        recorder = subprocess.Popen(command, stdout=out, stdin=subprocess.DEVNULL)
        try:
            yield lines
        finally:
            recorder.send_signal(signal.SIGTERM)
            if recorder.wait(60):
                raise JobError(f"chaos_recorder ended with {recorder.returncode}")
        out.seek(0)
        lines.extend(out)


def longest_gap_ms(lanes, pids, window):
    longest = 0
    for (_, pid), kinds in lanes.items():
        if pid in pids:
            busy = union(clip(kinds["compute"], window))
            edges = [window[0], *(edge for interval in busy for edge in interval), window[1]]
            longest = max([longest, *(edges[k + 1] - edges[k] for k in range(0, len(edges), 2))])
    return longest / 1e6
