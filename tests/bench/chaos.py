# SPDX-License-Identifier: Apache-2.0
"""Chaos: jobs that nobody harms run on the virtual GPU while others around them start, stop, fork, exec, leave and are
killed, and the shared files are attacked. What is done is a function of the seed. Exit status 1 when a job was lost,
hung or came to another result, two jobs computed at the same time without an excuse, or files stayed behind."""

import argparse
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts" / "lib"), str(Path(__file__).resolve().parent)]

import chaos_judge
import chaos_report
from chaos_jobs import (LongJob, LongWorkload, ShortJob, adopt_orphans, backtraces, reap_adopted, solo_losses,
                        went_ungated)
from chaos_plan import ATTACKS, SLOTS, episode, file_attack
from job import JobError
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail, monotonic_ns

OPTIONS = ["--devices", 2, "--link-gbps", 0.1]
SILENT_S = 60  # without an iteration of a long-lived job: it hangs
SHORT_S = 120  # for a short-lived job that nobody killed
PROBLEMS_TOLD = 20


def long_workloads(length_s):
    """{name: workload} of the jobs that nobody harms. In a short run they start anew sooner."""
    usual = LongWorkload(compute_ms=6, comm_mb=0.05, iterations=300 if length_s >= 60 else 100, warmup=0,
                         burn_per_ms=25_000)
    return {"A": usual,
            "B": replace(usual, compute_ms=3, comm_mb=0.1, overlap=True, buckets=2),
            "C": replace(usual, compute_ms=4, comm_mb=0.0, ranks=1, device=0)}


class Hang(RuntimeError):
    """A job made no progress; the text says who waits for what."""


class Run:
    """One chaos run on a machine; `counts` and the jobs hold what happened."""

    def __init__(self, machine, options, references):
        self.machine, self.options = machine, options
        if options.control:
            machine.variables["CROSSOVER"] = "observe"
        self.folder = machine.folder / "jobs"
        self.folder.mkdir()
        self.counts = Counter()
        self.long_jobs = [LongJob(machine, name, workload, self.folder)
                          for name, workload in long_workloads(options.length_s).items()]
        for job in self.long_jobs:
            job.reference = references[job.name]
        self.short_jobs, self.live = [], []
        self.problems = []
        self.queue, self.order = [], itertools.count()
        self.next_episode = 0
        self.recorder = None
        self.ending, self.done = False, []

    # ---- time

    def at(self, delay_s, action, *arguments):
        heapq.heappush(self.queue, (time.monotonic() + delay_s, next(self.order), action, arguments))

    def work(self):
        """What is due, then a look at all jobs."""
        while self.queue and self.queue[0][0] <= time.monotonic():
            _, _, action, arguments = heapq.heappop(self.queue)
            action(*arguments)
        for job in list(self.live):
            self.look_at(job)
        for job in self.long_jobs:
            if job.silent_s() > SILENT_S:
                raise Hang(self.explain(job.name, job.job.pids))

    def sleep(self):
        rest = self.queue[0][0] - time.monotonic() if self.queue else 0.02
        time.sleep(min(0.02, max(0.0, rest)))

    # ---- short-lived jobs

    def start_episode(self):
        if time.monotonic() >= self.end:
            return
        plan = episode(self.next_episode, self.options.seed)
        attack = file_attack(self.next_episode, self.options.seed) if self.options.files else None
        self.next_episode += 1
        job = ShortJob(self.machine, plan, self.folder)
        self.counts["joins"] += 1
        self.counts["namespaces"] += plan.namespace
        self.live.append(job)
        for act in plan.acts:
            self.at(act.after_ms / 1e3, self.carry_out, job, act)
        if attack and attack.what in self.options.attacks:
            self.at(attack.delay_ms / 1e3, self.attack, attack)

    def carry_out(self, job, act):
        if job.end is not None:
            self.counts["acts that came too late"] += 1
            return
        reached = job.act(act)
        self.counts[act.what if reached else "acts that came too early"] += 1
        if act.what == "stop" and reached:
            self.counts["processes stopped"] += reached
            self.at(act.length_ms / 1e3, job.cont)
        elif act.what == "kill" and reached:
            self.counts["processes killed"] += reached
            self.at(job.episode.linger_ms / 1e3, job.kill)
        elif act.what == "kill launcher" and reached and len(job.pids) < job.episode.ranks:
            job.hurt = True  # the rest of it was never started
            self.at(job.episode.linger_ms / 1e3, job.kill)
        elif act.what == "kill" and not job.hurt:
            # Its rank had not come up: it would run for very long.
            self.at(0.1, self.carry_out, job, act)

    def look_at(self, job):
        job.poll()
        if job.end is None:
            if (monotonic_ns() - job.start_ns) / 1e9 > SHORT_S:
                raise Hang(self.explain(job.name, job.members()))
            return
        self.live.remove(job)
        job.forget()
        self.short_jobs.append(job)
        self.counts[job.end] += 1
        if job.end == "left":
            self.counts[f"left: {job.episode.ending}"] += 1
        elif job.end != "killed":
            self.problems.append(f"job {job.name} ({job.episode}): {job.end}; it said: {job.said or 'nothing'}")
        if not self.ending:
            pause = episode(self.next_episode, self.options.seed).pause_ms
            self.at(pause / 1e3, self.start_episode)

    # ---- files

    def attack(self, plan):
        files = sorted(path for path in self.machine.shared_folder.iterdir() if not path.name.endswith(".tmp"))
        if plan.device >= len(files):
            self.counts["acts that came too late"] += 1
            return
        path, noise = files[plan.device], random.Random(plan.seed)
        try:
            if plan.what == "remove":
                path.unlink()
            elif plan.what == "truncate":
                os.truncate(path, int(plan.at * path.stat().st_size))
            else:
                with open(path, "r+b") as file:
                    size = path.stat().st_size
                    file.seek(int(plan.at * size))
                    file.write(noise.randbytes(min(plan.bytes, size - file.tell())))
        except FileNotFoundError:
            return
        self.counts[f"file: {plan.what}"] += 1

    # ---- the run

    def look_at_long(self, job):
        if not job.poll():
            return
        if not self.ending:
            job.begin()
            self.counts["restarts"] += 1

    def go(self):
        shared = self.machine.shared_folder
        recorder = self.machine.build.folder / "tests" / "chaos" / "chaos_recorder"
        with open(self.machine.folder / "ring.jsonl", "wb") as out:
            self.recorder = subprocess.Popen([str(recorder), str(shared)], stdout=out, stdin=subprocess.DEVNULL)
        self.begin_ns = monotonic_ns()
        for job in self.long_jobs:
            job.begin()
        self.end = time.monotonic() + self.options.length_s
        for slot in range(SLOTS):
            self.at(0.3 + 0.1 * slot, self.start_episode)
        reaped = 0
        while time.monotonic() < self.end:
            self.work()
            for job in self.long_jobs:
                self.look_at_long(job)
            if time.monotonic() - reaped > 1:
                reaped = time.monotonic()
                self.reap()
            self.sleep()
        self.ending = True
        self.chaos_ns = monotonic_ns() - self.begin_ns
        while self.live or self.queue:
            self.work()
            self.sleep()
            # All that was begun goes on to its end; the long-lived ones may be done before.
            self.finish_long()
        while self.finish_long():
            self.work()
            self.sleep()
        deadline = time.monotonic() + 30
        while self.reap() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.05)
        self.recorder.send_signal(signal.SIGTERM)
        self.recorder.wait(30)
        self.left_behind = sorted(path.name for path in shared.iterdir())

    def finish_long(self):
        """Whether some long-lived job still runs."""
        for job in [job for job in self.long_jobs if job not in self.done]:
            if job.poll():
                self.done.append(job)
        return len(self.done) < len(self.long_jobs)

    def reap(self):
        own = {job.process.pid for job in self.live} | {pid for job in self.long_jobs for pid in job.job.pids}
        own |= {self.recorder.pid}
        return reap_adopted(own)

    def stop(self):
        for job in self.live:
            job.kill()
        for job in self.long_jobs:
            job.stop()
        for job in self.live:
            job.process.wait()
        if self.recorder and self.recorder.poll() is None:
            self.recorder.kill()
            self.recorder.wait()

    def explain(self, name, pids):
        command = [str(self.machine.build.crossover), "status", "--dir", str(self.machine.shared_folder)]
        status = subprocess.run(command, env=self.machine.environment(), capture_output=True, text=True, timeout=60,
                                check=False)
        return (f"job {name} makes no progress\ncrossover status:\n{status.stdout}{status.stderr}\n"
                f"{backtraces(pids)}")

    def subjects(self):
        found = []
        for job in self.long_jobs:
            # Each run is a job of its own to the others.
            for number, (pids, start, end, said) in enumerate(job.runs, 1):
                owned = [(pid, start, end) for pid in pids]
                found.append(chaos_judge.Subject(f"{job.name}{number}", owned, long_lived=True,
                                                 ungated=went_ungated(said)))
        for job in self.short_jobs:
            pids = [(pid, job.start_ns, job.last_ns + 5_000_000_000) for pid in job.known_pids]
            stops = [(stop.pid, stop.start, stop.end or job.last_ns) for stop in job.stops]
            found.append(chaos_judge.Subject(job.name, pids, (job.name,), stops=stops, ungated=went_ungated(job.said)))
        return found


def references(build, length_s):
    """Each long-lived job alone, without the library: {name: losses}."""
    with VirtualMachine(build, ["--devices", 2]) as machine:
        return {name: solo_losses(machine, workload, machine.folder)
                for name, workload in long_workloads(length_s).items()}


def run(build, options):
    """(run, verdict, segments, machine's truth) of one chaos run."""
    adopt_orphans()
    found = references(build, options.length_s)
    with VirtualMachine(build, OPTIONS, options.keep) as machine:
        chaos = Run(machine, options, found)
        try:
            chaos.go()
        finally:
            chaos.stop()
        machine.stop()
        with open(machine.truth, encoding="ascii") as truth:
            compute = chaos_judge.read_compute(truth)
        with open(machine.folder / "ring.jsonl", encoding="ascii") as ring:
            segments, names = chaos_judge.read_ring(ring)
        subjects = chaos.subjects()
        verdict = chaos_judge.judge(subjects, segments, names, compute)
        owners, histories = chaos_judge.histories(subjects, segments, names, compute)
        stalls = chaos_report.stalls(subjects, owners, histories, compute)
        return chaos_report.Report(options, chaos, verdict, stalls)


def attacks(word):
    kinds = tuple(word.split(","))
    if not set(kinds) <= set(ATTACKS):
        raise argparse.ArgumentTypeError(f"'{word}'; allowed: {', '.join(ATTACKS)}, with commas between")
    return kinds


def main(arguments):
    parser = Parser(prog="scripts/bench chaos", description=__doc__)
    parser.add_argument("--seed", type=at_least(0), default=1, help="what is done (default 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=at_least(0.1, float), help="how long (default 1)")
    length.add_argument("--seconds", type=at_least(1, float), help="the same in seconds")
    parser.add_argument("--files", action=argparse.BooleanOptionalAction, default=True,
                        help="attack the shared files as well (default)")
    parser.add_argument("--attacks", type=attacks, default=ATTACKS, metavar="KIND,...",
                        help=f"which attacks on files (default {','.join(ATTACKS)})")
    parser.add_argument("--control", action="store_true",
                        help="the jobs take no turns, so the judge must find double holders: exit status 0 if it does")
    parser.add_argument("--markdown", action="store_true", help="print a table for docs/reliability.md")
    parser.add_argument("--keep", metavar="DIR", help="keep logs, truth log and rings there")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    options.length_s = options.seconds or 60 * (options.minutes or 1)
    try:
        report = run(Build.from_environment().check(), options)
    except (Hang, JobError, MachineError, ValueError) as error:
        fail(str(error))
    print(report.markdown() if options.markdown else report.text())
    if options.json:
        Path(options.json).write_text(json.dumps(report.figures(), indent=2) + "\n", encoding="utf-8")
    problems = report.problems()
    for problem in problems[:PROBLEMS_TOLD]:
        print(f"chaos: {problem}", file=sys.stderr)
    if len(problems) > PROBLEMS_TOLD:
        print(f"chaos: and {len(problems) - PROBLEMS_TOLD} more", file=sys.stderr)
    if options.control:
        return 0 if report.double_holders() else 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
