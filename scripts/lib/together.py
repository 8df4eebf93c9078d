# SPDX-License-Identifier: Apache-2.0
"""Jobs side by side on one machine: starts them at chosen moments, waits for all, and gives the time that they shared.
Measures nothing else; which mode a run is, and what a figure means, is the caller's."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from intervals import phases, read_truth
from job import Job, JobError, Workload
from machine import monotonic_ns

TRACE_LIMIT_S = 30


@dataclass(frozen=True)
class Start:
    """One job of a run."""

    name: str
    program: Path
    workload: Workload
    delay_ms: float = 0.0  # after the first moment at which any job begins


def run_together(machine, starts, lead_s, limit_s, preload=False, timeline=None, rank_environment=None,
                 rank_prefix=None):
    """Results in the order of `starts`. All begin lead_s from now, plus their delay: enough time for their set-up, or
    they are not in phase (Result.late_ms says so). `timeline`: prefix of the files of a trace."""
    begin = monotonic_ns() + int(lead_s * 1e9)
    trace = start_trace(machine, timeline) if timeline else None
    jobs = []
    try:
        for start in starts:
            # So that the turns' order is always the same.
            named = {"CROSSOVER_JOB": f"job {start.name}"} if preload else {}
            environment = machine.environment(preload, **named)
            jobs.append(Job(start.name, start.program, start.workload, environment, machine.folder,
                            begin + int(start.delay_ms * 1e6), rank_environment or machine.rank_environment,
                            rank_prefix))
        results = [job.wait(limit_s) for job in jobs]
    finally:
        for job in jobs:
            job.stop()
        if trace:
            finish_trace(trace)
    return results


def shared_window(results):
    """(start_ns, end_ns) of the time in which all were in their measured iterations; JobError if there is none."""
    window = max(r.window[0] for r in results), min(r.window[1] for r in results)
    if window[1] <= window[0]:
        names = ", ".join(result.name for result in results)
        raise JobError(f"jobs {names}: never in their measured iterations at the same time")
    return window


def measured_phases(machine, result):
    """Phases of a job that ran alone, from the virtual machine's truth log; ends the machine."""
    machine.stop()
    return phases(read_truth(machine.truth), result.pids, result.window, len(result.starts))


def start_trace(machine, timeline):
    command = [str(machine.build.crossover), "trace", "--dir", str(machine.shared_folder), "--until-end", "--output",
               str(timeline), "--format", "both"]
    return subprocess.Popen(command, env=machine.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def finish_trace(trace):
    try:
        _, errors = trace.communicate(timeout=TRACE_LIMIT_S)
    except subprocess.TimeoutExpired:
        trace.kill()
        trace.communicate()
        raise JobError(f"crossover trace did not end within {TRACE_LIMIT_S} s of the jobs' end") from None
    if trace.returncode:
        raise JobError(f"crossover trace ended with {trace.returncode}: {errors.strip()}")
