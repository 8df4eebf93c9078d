# SPDX-License-Identifier: Apache-2.0
"""The checks of what turns gain: two jobs one after the other, side by side, under MPS and with Crossover, against the
bound from their own measured phases; and what a launch costs on this driver. Runs are scripts/demo's."""

import json
import os
import sys
import time
from dataclasses import replace

from intervals import Phases, bound
from job import JobError, Workload
from machine import REPOSITORY, MachineError

from .context import with_variables
from .runner import OK, Skip, Wrong

sys.path.insert(0, str(REPOSITORY / "scripts" / "demo"))
sys.path.insert(0, str(REPOSITORY / "tests" / "bench"))

import launch_cost  # noqa: E402
import runs  # noqa: E402

COMPUTE_MS, COMM_MS = 40.0, 20.0
STREAM_GATE = "crossover, CROSSOVER_GATE=stream"


def solo(bench, setting, figures):
    """(Result, Phases) of a job alone. Where the library's inference gave no phases, those that the iteration
    leaves."""
    name = bench.JOBS[0]
    try:
        result, phases = bench.solo(setting, name)
        figures.save(phases_from="truth log" if not bench.gpus else "the library's inference")
        return result, phases
    except ValueError as error:
        with bench.machine(setting, "mps", "solo") as machine:
            with bench.start(machine, setting, name, preload=False) as job:
                result = job.wait(runs.RUN_LIMIT_S)
        exposed = max(0.0, result.iteration_ms - COMPUTE_MS)
        figures.save(phases_from=f"the iteration, less the compute asked for ({error})")
        return result, Phases(COMPUTE_MS, exposed, exposed)


def setting_for(context):
    # On one GPU the job's two ranks compute one after the other.
    own_ms = COMPUTE_MS / 2 if context.gpus else COMPUTE_MS
    workload = Workload(compute_ms=own_ms, comm_mb=0.25, iterations=10 if context.quick else 24)
    return runs.Setting("qualify", "C = 40 ms, M = 20 ms", workload, shared_link=False, link_gbps=0.1, comm_ms=COMM_MS)


def modes_of(context, period_ms):
    """(name, sharing, preloaded, offset of the second job in ms); what says most first."""
    mps = context.sharing == "mps"
    gate = [(STREAM_GATE, context.sharing, True, 0.0)] if context.has_stream_gate() else []
    modes = [("crossover", context.sharing, True, 0.0), *gate, ("time-sliced", "timeslice", False, 0.0)]
    if mps:
        modes.append(("MPS, in phase", "mps", False, 0.0))
        if not context.quick:
            modes += [
                ("MPS, half a period apart", "mps", False, period_ms / 2),
                ("crossover without MPS", "timeslice", True, 0.0),
            ]
    return modes


def handovers(trace):
    """us from each beginning of a turn after another job's to the first compute of the job that has it, in the order of
    devices and time; of a trace by `crossover trace`."""
    lanes, turns, starts = {}, {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            lanes[event["pid"], event["tid"]] = event["args"]["name"]
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        device, lane = event["pid"], lanes[event["pid"], event["tid"]]
        if lane == "whose turn":
            turns.setdefault(device, []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif lane.endswith(": compute"):
            starts.setdefault((device, lane.removesuffix(": compute")), []).append(event["ts"])
    found = []
    for device, row in sorted(turns.items()):
        row.sort()
        for (_, _, before), (begin, end, job) in zip(row, row[1:]):
            own = [start for start in starts.get((device, job), []) if begin <= start < end]
            if job != before and own:
                found.append(min(own) - begin)
    return found


def gain(context):
    runs.RUN_LIMIT_S = 60
    bench = runs.Bench(context.kit, None, context.gpus[:1])
    setting = setting_for(context)
    figures = context.figures
    if bench.gpus:
        # Without MPS everything is time-sliced.
        bench.machine = lambda setting, sharing, label: context.machine(
            sharing if context.sharing == "mps" else "timeslice"
        )
    try:
        setting = runs.fitted(bench, setting)
    except (ValueError, ZeroDivisionError) as error:
        figures.save(comm_not_fitted=str(error))
        setting = replace(setting, workload=replace(setting.workload, comm_mb=16.0))
    begin = time.monotonic()
    result, phases = solo(bench, setting, figures)
    spent = time.monotonic() - begin - (result.window[1] - result.window[0]) / 1e9
    # Jobs begin together: half as much again as the set-up took alone, where a GPU's run was two.
    runs.LEAD_S = 1.0 + 1.5 * spent / (2 if bench.gpus else 1)
    setting = replace(setting, workload=replace(setting.workload, burn_per_ms=result.burn_per_ms))
    serial, best = 2 * result.iteration_ms, bound([phases, phases], setting.shared_link)
    figures.save(
        c_ms=phases.compute,
        m_ms=phases.communicate,
        e_ms=phases.exposed,
        iteration_ms=result.iteration_ms,
        comm_mb=setting.workload.comm_mb,
        serial_ms=serial,
        bound_ms=best,
        sharing=context.sharing,
        modes={},
    )
    modes = {
        "one after the other": {
            "period_ms": serial,
            "speedup": 1.0,
            "efficiency": best / serial,
            "losses_identical": True,
        }
    }
    reference = {name: result.losses for name in bench.JOBS}
    make = bench.machine
    for name, sharing, preload, offset in modes_of(context, result.iteration_ms):
        variables = {"CROSSOVER_GATE": "stream"} if name == STREAM_GATE else {}
        bench.machine = lambda *own, variables=variables: with_variables(make(*own), variables)
        timeline = context.folder / "timeline" if name == "crossover" else None
        try:
            run = bench.pair(setting, sharing, name, reference, preload, offset, timeline)
            modes[name] = {
                "period_ms": run.period_ms,
                "speedup": serial / run.period_ms,
                "efficiency": best / run.period_ms,
                "losses_identical": run.losses_identical,
                "late_ms": run.late_ms,
                "offset_ms": offset,
            }
        except (JobError, MachineError) as error:
            modes[name] = {"error": str(error)}
        figures.save(modes=modes)
    if (context.folder / "timeline.json").exists():
        changes = sorted(handovers(json.loads((context.folder / "timeline.json").read_text(encoding="utf-8"))))
        if not changes:
            raise Wrong("the jobs never took turns")
        figures.save(handovers=len(changes), handover_us=changes[len(changes) // 2])
    wrong = [
        f"{name}: {row.get('error', 'losses differ')}" for name, row in modes.items() if not row.get("losses_identical")
    ]
    if wrong:
        raise Wrong("; ".join(wrong))
    told = ", ".join(f"{name} {row['speedup']:.2f}" for name, row in modes.items() if name != "one after the other")
    return (
        f"C {phases.compute:.1f} ms, E {phases.exposed:.1f} ms, bound {serial / best:.2f}; speed-up over one after the "
        f"other: {told}; efficiency of crossover {modes['crossover']['efficiency']:.3f}"
    )


def launch_real(context):
    """ns of a launch on this driver, bare and preloaded, in turns."""
    rounds = 3 if context.quick else 7
    sides = {"bare": [], "preloaded": []}
    times = context.before.get("calibration.times")
    per_ms = times.figures.get("rounds_per_ms") if times and times.status == OK else None
    own = ["--burn-per-ms", repr(per_ms)] if per_ms else []
    with context.machine("timeslice") as machine:
        for number in range(rounds):
            for side in ("bare", "preloaded") if number % 2 == 0 else ("preloaded", "bare"):
                preload = [context.kit.library] if side == "preloaded" else None
                found = context.probe(machine, "launch", "--iterations", 15, *own, preload=preload)
                sides[side].append(found["ns"])
    ns = {
        way: {side: sorted(row[way] for row in rows)[len(rows) // 2] for side, rows in sides.items()}
        for way in sides["bare"][0]
    }
    context.figures.save(ns=ns, rounds=rounds, cores=os.cpu_count())
    told = ", ".join(f"{way} {row['bare']:.0f} and {row['preloaded']:.0f}" for way, row in ns.items())
    return f"ns a launch, bare and preloaded: {told}"


def launch_stub(context):
    """What the library adds, on a driver that does nothing: tests/bench's figures on this machine's processor."""
    try:
        setup = launch_cost.Setup(context.kit.folder)
    except launch_cost.Failed as error:
        raise Skip(str(error)) from None
    times, _ = launch_cost.launch_times(setup, 2 if context.quick else 5, "--launches", 5000, "--only", "/link")
    context.figures.save(ns=times)
    row = times["cuLaunchKernel/link"]
    return (
        f"cuLaunchKernel on a driver that does nothing: {row['bare']:.1f} ns bare, {row['alone']:.1f} preloaded alone, "
        f"{row['one of two']:.1f} beside another job"
    )
