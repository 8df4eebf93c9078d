# SPDX-License-Identifier: Apache-2.0
"""Checks that training gives the same with and without the library: two jobs of two ranks each on one device, every way
in which frameworks submit, an abort, a kill. Every job has a limit; what hangs is a failure. No speeds."""

import hashlib
import os
import signal
import time
from dataclasses import replace

from job import Job, JobError, Workload
from together import Start, run_together, shared_window

from .context import median, with_variables
from .runner import Skip, Wrong

JOBS = ("A", "B")
JOB_LIMIT_S = 60
JOINED = "joined device"  # in the line that the library says at the level "info"
EQUAL, APART = "equal", "equal, but the jobs did not run at the same time"
# Those that say most about real libraries first.
PATTERNS = (
    "ddp_buckets",
    "graph_compute",
    "graph_all",
    "nonblocking_comm",
    "tensor_parallel",
    "fsdp",
    "horovod_async",
    "pipeline",
    "ddp_sync",
    "horovod_blocking",
    "multi_stream",
    "ddp_no_sync",
    "eval_and_checkpoint",
    "gloo_cpu",
)


def timed_alone(context, machine, name, program, workload, preload):
    """(Result, seconds after which jobs started together should begin): twice what its set-up took, and some."""
    begin = time.monotonic()
    result = alone(context, machine, name, program, workload, preload)
    spent = time.monotonic() - begin - (result.window[1] - result.window[0]) / 1e9
    return result, 2.0 + 2.0 * spent


def digest(losses):
    return hashlib.sha256("\n".join(losses).encode()).hexdigest()[:16]


def alone(context, machine, name, program, workload, preload):
    with Job(
        name, program, workload, machine.environment(preload), machine.folder, rank_environment=machine.rank_environment
    ) as job:
        return job.wait(JOB_LIMIT_S)


def without_library(machine):
    """Ranks of the pair that never joined the device: of those equal losses would say nothing."""
    logs = [machine.folder / job / f"rank{rank}.log" for job in JOBS for rank in range(2)]
    return [
        f"{log.parent.name}/{log.stem}"
        for log in logs
        if JOINED not in log.read_text(encoding="utf-8", errors="replace")
    ]


def losses(context):
    """dp_train alone bare, alone preloaded, and two jobs in turns: the same losses to the last bit."""
    workload = Workload(compute_ms=4, comm_mb=0.4, iterations=24 if context.quick else 40, buckets=2, overlap=True)
    with with_variables(context.machine(), {"CROSSOVER_LOG": "info"}) as machine:
        bare, lead_s = timed_alone(context, machine, "bare", context.kit.program, workload, preload=False)
        workload = replace(workload, burn_per_ms=bare.burn_per_ms)
        context.figures.save(
            sharing=context.sharing, losses=len(bare.losses), bare=digest(bare.losses), last_loss=bare.losses[-1]
        )
        single = alone(context, machine, "single", context.kit.program, workload, preload=True)
        context.figures.save(preloaded_alone=digest(single.losses))
        starts = [Start(name, context.kit.program, workload) for name in JOBS]
        pair = run_together(machine, starts, lead_s, JOB_LIMIT_S, preload=True)
        strangers = without_library(machine)
    start, end = shared_window(pair)
    context.figures.save(in_turns=[digest(result.losses) for result in pair], together_ms=(end - start) / 1e6)
    if strangers:
        raise Wrong(f"preloaded, {', '.join(strangers)} never joined the device")
    different = [result.name for result in (single, *pair) if result.losses != bare.losses]
    if different:
        raise Wrong(f"losses of {', '.join(different)} differ from those of the bare run")
    return f"{len(bare.losses)} losses equal to the last bit: bare, preloaded alone, two jobs of two ranks in turns"


# Whose submission differs most from what a waiting stream is used to.
FELL_BACK = "launching threads wait for the turn"  # what the library says where it cannot
GATE_PATTERNS = ("ddp_buckets", "multi_stream", "graph_compute", "tensor_parallel", "nonblocking_comm")


def stream_gate(context):
    """CROSSOVER_GATE=stream: jobs that wait in the GPU's queue, by stream memory operations. Losses are equal, and a
    job beside one that is killed ends."""
    if not context.has_stream_gate():
        raise Skip("this build of the library has no CROSSOVER_GATE")
    found = {}
    with with_variables(context.machine(), {"CROSSOVER_GATE": "stream", "CROSSOVER_LOG": "info"}) as machine:
        for name in GATE_PATTERNS[: 2 if context.quick else None]:
            try:
                found[name] = one_pattern(context, machine, name)
            except JobError as error:
                found[name] = str(error)
            logs = "".join(
                job.read_text(encoding="utf-8", errors="replace")
                for job in sorted(machine.folder.glob("[AB]/rank*.log"))
            )
            print(f"== {name}\n{logs}", flush=True)
            context.figures.save(patterns=found)
            if FELL_BACK in logs:
                raise Skip("the library waits on the CPU here: " + next(l for l in logs.splitlines() if FELL_BACK in l))
    told = survives_a_kill(context, {"CROSSOVER_GATE": "stream"})
    return f"{judged(found)}; {told}"


def one_pattern(context, machine, name):
    options = ("--pattern", name, "--layers", "4", "--hidden", "32", "--burn-per-ms", "25000")
    workload = Workload(compute_ms=4, comm_mb=0.4, iterations=16, buckets=2, extra=options)
    bare, lead_s = timed_alone(context, machine, "bare", context.kit.patterns, workload, preload=False)
    starts = [Start(job, context.kit.patterns, workload) for job in JOBS]
    pair = run_together(machine, starts, lead_s, JOB_LIMIT_S, preload=True)
    if any(result.losses != bare.losses for result in pair):
        return "losses differ"
    if strangers := without_library(machine):
        return f"{', '.join(strangers)} never joined the device"
    try:
        shared_window(pair)
    except JobError:
        return APART
    return EQUAL


def patterns(context):
    """Each way of submitting a step: two jobs in turns against one bare."""
    found = {}
    with with_variables(context.machine(), {"CROSSOVER_LOG": "info"}) as machine:
        for name in PATTERNS[: 3 if context.quick else None]:
            try:
                found[name] = one_pattern(context, machine, name)
            except JobError as error:
                found[name] = str(error)
            context.figures.save(patterns=found)
    return judged(found)


def judged(found):
    """One line on {pattern: what came of it}; Wrong if a pattern's losses differ, or none had both jobs at once."""
    wrong = {name: told for name, told in found.items() if told not in (EQUAL, APART)}
    apart = [name for name, told in found.items() if told == APART]
    if wrong:
        first = next(iter(wrong))
        raise Wrong(f"{len(wrong)} of {len(found)} patterns: {first}: {wrong[first]}")
    if len(apart) == len(found):
        raise Wrong("the two jobs of a pattern never ran at the same time, so nothing was shown")
    told = f"; of {', '.join(apart)} the two jobs missed each other" if apart else ""
    return f"{len(found)} patterns, losses equal: {', '.join(found)}{told}"


def killed(context):
    """SIGKILL of one job while both run: the other ends with its losses, and the next job starts as the first did."""
    return survives_a_kill(context, {})


def survives_a_kill(context, variables):
    workload = Workload(compute_ms=8, comm_mb=0.4, iterations=30 if context.quick else 60)
    with with_variables(context.machine(), variables) as machine:

        def start(name):
            environment = machine.environment(True, CROSSOVER_JOB=f"job {name}", CROSSOVER_LOG="info")
            return Job(
                name,
                context.kit.program,
                workload,
                environment,
                machine.folder,
                rank_environment=machine.rank_environment,
            )

        with start("reference") as job:
            reference = job.wait(JOB_LIMIT_S)
        with start("victim") as victim, start("survivor") as survivor:
            wait_until_joined([victim, survivor])
            time.sleep(0.3)
            running = [process.poll() is None for process in victim.processes + survivor.processes]
            for process in victim.processes:
                os.kill(process.pid, signal.SIGKILL)
            killed_at = time.monotonic()
            survived = survivor.wait(JOB_LIMIT_S)
            seconds = time.monotonic() - killed_at
        with start("next") as job:
            following = job.wait(JOB_LIMIT_S)
    context.figures.save(
        all_ran_at_the_kill=all(running),
        survivor_ended_after_s=seconds,
        reference=digest(reference.losses),
        survivor=digest(survived.losses),
        next=digest(following.losses),
    )
    if not all(running):
        raise Wrong("a job had ended before the kill, so nothing was shown")
    if survived.losses != reference.losses or following.losses != reference.losses:
        raise Wrong("losses differ after the kill")
    return "the survivor ended with its losses, and so did the next job"


def wait_until_joined(jobs):
    """All ranks said that they share a device: from then on they take turns."""
    end = time.monotonic() + JOB_LIMIT_S
    while time.monotonic() < end:
        if all(JOINED in job.log(rank) for job in jobs for rank in range(len(job.processes))):
            return
        if any(process.poll() is not None for job in jobs for process in job.processes):
            break
        time.sleep(0.02)
    raise Wrong("not all ranks joined the device")


def abort(context):
    """ncclCommAbort of a collective whose peer never comes, preloaded and beside another job: it ends, the process
    computes on, the other job's losses are its own."""
    workload = Workload(compute_ms=8, comm_mb=0.4, iterations=20 if context.quick else 60)
    with context.machine() as machine:
        bare = alone(context, machine, "bare", context.kit.program, workload, preload=False)
        with Job(
            "beside",
            context.kit.program,
            workload,
            machine.environment(True, CROSSOVER_JOB="job beside"),
            machine.folder,
            rank_environment=machine.rank_environment,
        ) as job:
            found = [
                context.probe(
                    machine,
                    "abort",
                    ranks=2,
                    preload=[context.kit.library],
                    job=f"abort{k}",
                    limit_s=40,
                    variables={"CROSSOVER_JOB": "job abort"},
                )
                for k in range(2)
            ]
            beside = job.wait(JOB_LIMIT_S)
    context.figures.save(
        aborts=found, abort_ms=median([f["abort_ms"] for f in found]), beside_equal=beside.losses == bare.losses
    )
    if not all(f["waited"] and f["computes_after"] for f in found):
        raise Wrong("the collective did not wait for its peer, so nothing was aborted")
    if beside.losses != bare.losses:
        raise Wrong("the other job's losses differ")
    return (
        f"an abort takes {median([f['abort_ms'] for f in found]):.1f} ms, the process computes on, the other job's "
        "losses are equal"
    )
