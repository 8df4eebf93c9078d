# SPDX-License-Identifier: Apache-2.0
"""What the runs of a cell of the efficiency grid come to: its figures against bound, serial, uncoordinated MPS and the
planner's prediction, what is wrong with them, the aims, the tables. Pure. docs/efficiency.md says what each means."""

import statistics
from dataclasses import dataclass, field

from intervals import clip, length, subtract, unfilled, union

AIM_MEDIAN, AIM_WORST, AIM_AGAINST_MPS, AIM_PREDICTION = 0.97, 0.90, 0.98, 0.05
HOST_PART = 0.02  # a job alone that is further off what was asked: this machine was too slow for it
HOST_BUSY = 0.85  # part of this machine's processors in use during a run, from which on wake-ups wait
IN_STEP_PART = 0.03  # jobs whose periods differ by less keep step
LATE_MS = 2.0
LEAST_WINDOWS_NS = (300_000, 600_000, 1_200_000)  # CROSSOVER_MIN_WINDOW_US first
IDLE_ITERATIONS = 4  # of a job alone, that are looked at for what must be idle
LIKE_DP_TRAIN = ("", "ddp_buckets", "ddp_sync")  # patterns
IN_STAGES = ("pipeline",)  # whose ranks compute unlike, and wait for each of their messages


@dataclass
class Alone:
    """A job by itself, per iteration, in ms."""

    period_ms: float
    phases: object  # intervals.Phases
    asked_ms: float  # 0: nothing exact was asked for
    spread: float  # of the iterations: median over the lowest tenth, less 1
    host_busy: float
    course: list = field(default_factory=list)  # see course() and stages(); empty: not known
    # {device: ([(start_ns, end_ns)] in which it computed there, [the same of its iterations])}
    computed: dict = field(default_factory=dict)

    @property
    def turn_ms(self):
        """What a turn lasts: the iteration but for its communication window. More than C by what the device waits for
        the program between iterations, with the turn."""
        return self.period_ms - self.phases.exposed

    @property
    def host_limited(self):
        off = abs(self.period_ms / self.asked_ms - 1) if self.asked_ms else self.spread
        return off > HOST_PART


@dataclass
class Shared:
    """One run of all jobs; figures of the time that they shared."""

    periods_ms: list  # of each job
    losses_identical: bool
    late_ms: float
    host_busy: float
    computing: float = 0.0  # part of the time in which a device computed, mean over the devices
    both_computing: float = 0.0  # in which at least two jobs did

    @property
    def in_step(self):
        return max(self.periods_ms) < min(self.periods_ms) * (1 + IN_STEP_PART)

    def speed(self, alone):
        """Sum over the jobs of (period alone / period here): 1 is one job after the other."""
        return sum(job.period_ms / period for job, period in zip(alone, self.periods_ms))

    def efficiency(self, alone, shared_link):
        used = efficiency([job.phases for job in alone], self.periods_ms, shared_link)
        if not self.in_step:
            return used
        compute = sum(job.phases.compute for job in alone)
        return max(used, (compute + idle_ms(alone)) / statistics.mean(self.periods_ms))


def efficiency(phases, periods_ms, shared_link):
    """How much of the scarcest of devices, link and a job's own time is used: the part of their present speed over the
    highest at which they could all go in this same proportion. Where the jobs keep step this is T* / period."""
    return max(
        sum(job.compute / period for job, period in zip(phases, periods_ms)),
        sum(job.communicate / period for job, period in zip(phases, periods_ms)) if shared_link else 0.0,
        max((job.compute + job.exposed) / period for job, period in zip(phases, periods_ms)),
    )


def idle_ms(alone):
    """How long some device must be idle in an iteration of each of two jobs, whatever their order: while one of them
    waits for its other devices and its communication, the other can compute no more there than alone in so short a
    time, as it waits for its own. (The longer such a wait is, the more of it remains, so that longer ones do not help.
    Of three jobs this cannot be said.) The bound T* knows nothing of it."""
    most = 0.0
    for device in set().union(*(job.computed for job in alone)):
        present = [job.computed[device] for job in alone if device in job.computed]
        if len(present) == 2:
            for (intervals, iterations), (other, _) in (present, present[::-1]):
                looked_at = iterations[1:1 + IDLE_ITERATIONS]
                idle = [unfilled(intervals, iteration, other) for iteration in looked_at]
                most = max(most, statistics.mean(idle) / 1e6)
    return most


@dataclass
class Outcome:
    """All runs of a cell."""

    cell: object  # grid_cells.Cell
    alone: list = field(default_factory=list)
    uncoordinated: list = field(default_factory=list)  # MPS, by offset
    crossover: Shared = None
    crossover_stream: Shared = None  # with CROSSOVER_GATE=stream
    sliced: Shared = None  # uncoordinated, time-sliced
    crossover_sliced: Shared = None
    planned_ms: list = None  # periods by `crossover plan`
    error: str = ""  # why there are no figures

    def runs(self):
        return [run for run in (*self.uncoordinated, self.crossover, self.crossover_stream, self.sliced,
                                self.crossover_sliced) if run]

    @property
    def doubts(self):
        """Why the figures are not counted."""
        found = []
        if any(job.host_limited for job in self.alone):
            found.append("host-limited")
        if max((run.host_busy for run in (*self.alone, *self.runs())), default=0.0) > HOST_BUSY:
            found.append("host busy")
        return found

    @property
    def losses_identical(self):
        return all(run.losses_identical for run in self.runs())


def handover_us(alone, periods_ms, shared_link):
    """What one change of turns costs: for jobs in step whose turns bound them, the period less these, over their
    number. None where something else bounds them."""
    mean = statistics.mean(periods_ms)
    compute = sum(job.phases.compute for job in alone)
    used = efficiency([job.phases for job in alone], [mean] * len(alone), shared_link)
    if max(periods_ms) >= min(periods_ms) * (1 + IN_STEP_PART) or used > compute / mean * 1.02:
        return None
    return (mean - sum(job.turn_ms for job in alone)) / len(alone) * 1e3


def prediction_error(planned_ms, periods_ms):
    """Of the job that is predicted worst: predicted / measured period - 1."""
    return max((planned / period - 1 for planned, period in zip(planned_ms, periods_ms)), key=abs)


def spread(times_ms):
    row = sorted(times_ms)
    return statistics.median(row) / row[len(row) // 10] - 1


def computing_parts(lanes, pids_by_job, window, devices):
    """(part of the window in which a device computed, part in which at least two jobs did), means over the devices."""
    some = several = 0
    for device in range(devices):
        covered = []
        for pids in pids_by_job:
            rows = [lanes[device, pid]["compute"] for pid in pids if (device, pid) in lanes]
            job = union(clip([interval for row in rows for interval in row], window))
            several += length(job) - length(subtract(job, covered))
            covered = union([*covered, *job])
        some += length(covered)
    time = devices * (window[1] - window[0])
    return some / time, several / time


def figures(outcome):
    """Plain figures of a cell that was measured, for JSON and the tables."""
    cell, alone, ours = outcome.cell, outcome.alone, outcome.crossover
    link = cell.shared_link
    speeds = [run.speed(alone) for run in outcome.uncoordinated]
    row = {
        "jobs": [{"asked": job.text, "compute_ms": one.phases.compute, "communicate_ms": one.phases.communicate,
                  "exposed_ms": one.phases.exposed, "alone_ms": one.period_ms, "asked_alone_ms": one.asked_ms or None,
                  "shared_ms": period}
                 for job, one, period in zip(cell.jobs, alone, ours.periods_ms)],
        "in_step": ours.in_step,
        "period_ms": statistics.mean(ours.periods_ms),
        "efficiency": ours.efficiency(alone, link),
        "speed": ours.speed(alone),
        "mps_speeds": speeds, "mps_mean": statistics.mean(speeds), "mps_best": max(speeds),
        "mps_efficiency": statistics.mean(run.efficiency(alone, link) for run in outcome.uncoordinated),
        "against_mps": ours.speed(alone) / statistics.mean(speeds),
        "handover_us": handover_us(alone, ours.periods_ms, link),
        "computing": ours.computing, "both_computing": ours.both_computing,
        "mps_both_computing": [run.both_computing for run in outcome.uncoordinated],
        "losses_identical": outcome.losses_identical,
        "host_busy": max(run.host_busy for run in (*alone, *outcome.runs())),
        "late_ms": max(run.late_ms for run in outcome.runs()),
        "doubts": outcome.doubts,
    }
    # In step, and the bound is then that of one iteration of each; else the combined speed's own.
    row["bound_ms"] = row["efficiency"] * row["period_ms"] if ours.in_step else None
    if outcome.planned_ms:
        row["planned_ms"] = outcome.planned_ms
        row["prediction_error"] = prediction_error(outcome.planned_ms, ours.periods_ms)
    if outcome.crossover_stream:
        row["stream_speed"] = outcome.crossover_stream.speed(alone)
        row["stream_efficiency"] = outcome.crossover_stream.efficiency(alone, link)
    if outcome.sliced:
        row["sliced_speed"] = outcome.sliced.speed(alone)
        row["crossover_sliced_speed"] = outcome.crossover_sliced.speed(alone)
        row["crossover_sliced_efficiency"] = outcome.crossover_sliced.efficiency(alone, link)
    return row


def report(outcomes, device):
    """Everything, as it stands in the JSON file."""
    cells = {}
    for outcome in outcomes:
        cell = outcome.cell
        place = {"text": cell.text, "row": cell.row, "column": cell.column}
        cells[cell.name] = place | ({"error": outcome.error} if outcome.error else figures(outcome))
    counted = [cell for cell in cells.values() if counts(cell)]
    summary = {"cells": len(cells), "counted": len(counted)}
    if counted:
        summary |= {"median_efficiency": statistics.median(cell["efficiency"] for cell in counted),
                    "worst_efficiency": min(cell["efficiency"] for cell in counted),
                    "least_speed": min(cell["speed"] for cell in counted),
                    "least_against_mps": min(cell["against_mps"] for cell in counted)}
        streams = [cell["stream_efficiency"] for cell in counted if "stream_efficiency" in cell]
        if streams:
            summary |= {"median_stream_efficiency": statistics.median(streams), "worst_stream_efficiency": min(streams),
                        "least_stream_against_mps": min(cell["stream_speed"] / cell["mps_mean"] for cell in counted
                                                        if "stream_speed" in cell)}
        costs = [cell["handover_us"] for cell in counted if cell["handover_us"] is not None]
        errors = [abs(cell["prediction_error"]) for cell in counted if "prediction_error" in cell]
        summary["handover_us"] = statistics.median(costs) if costs else None
        summary["median_prediction_error"] = statistics.median(errors) if errors else None
        summary["worst_prediction_error"] = max(errors, default=None)
    return {"device": device, "summary": summary, "cells": cells}


def counts(cell):
    return "error" not in cell and not cell["doubts"]


# (what a line says of the gate, keys of a cell's figures with it)
GATES = (("", "efficiency", "speed"), ("gate in the queues: ", "stream_efficiency", "stream_speed"))


def missed_aims(found):
    """One line for each aim that is missed, with each gate that was run, and by the plan."""
    counted = {name: cell for name, cell in found["cells"].items() if counts(cell)}
    if not counted:
        return ["no cell counts: this machine was too busy or too slow for every one"]
    missed = []
    for gate, efficiency, speed in GATES:
        ran = {name: cell for name, cell in counted.items() if efficiency in cell}
        median = statistics.median(cell[efficiency] for cell in ran.values()) if ran else AIM_MEDIAN
        if median < AIM_MEDIAN:
            missed.append(f"{gate}median efficiency {median:.3f}, aim {AIM_MEDIAN}")
        for name, cell in ran.items():
            against_mps = cell[speed] / cell["mps_mean"]
            if cell[efficiency] < AIM_WORST:
                missed.append(f"{gate}{name}: efficiency {cell[efficiency]:.3f}, aim {AIM_WORST}")
            if cell[speed] < 1:
                missed.append(f"{gate}{name}: slower than one after the other, {cell[speed]:.3f}")
            if against_mps < AIM_AGAINST_MPS:
                missed.append(f"{gate}{name}: {against_mps:.3f} of uncoordinated MPS, aim {AIM_AGAINST_MPS}")
    for name, cell in counted.items():
        error = cell.get("prediction_error", 0)
        if abs(error) > AIM_PREDICTION:
            missed.append(f"plan of {name}: off by {100 * error:+.1f} %, aim {100 * AIM_PREDICTION:.0f} %")
    return missed


HEADER = ("cell", "jobs: program C/M ms", "period ms", "bound ms", "efficiency", "gate in the queues", "speed",
          "MPS mean", "MPS best", "against MPS", "plan's error", "losses identical", "note")


def rows(found):
    """Text cells of the table, HEADER's columns."""
    for name, cell in found["cells"].items():
        if "error" in cell:
            yield [name, cell["text"], *["-"] * (len(HEADER) - 3), f"failed: {cell['error']}"]
            continue
        notes = list(cell["doubts"])
        if not cell["in_step"]:
            notes.append("not in step: " + ", ".join(f"{job['shared_ms']:.1f}" for job in cell["jobs"]) + " ms")
        if cell["late_ms"] > LATE_MS:
            notes.append(f"began {cell['late_ms']:.0f} ms late")
        if "sliced_speed" in cell:
            notes.append(f"time-sliced: speed {cell['crossover_sliced_speed']:.2f}, uncoordinated "
                         f"{cell['sliced_speed']:.2f}")
        error = f"{100 * cell['prediction_error']:+.1f} %" if "prediction_error" in cell else "-"
        yield [name, cell["text"], f"{cell['period_ms']:.1f}", f"{cell['bound_ms']:.1f}" if cell["bound_ms"] else "-",
               *(f"{cell[key]:.3f}" if key in cell else "-"
                 for key in ("efficiency", "stream_efficiency", "speed", "mps_mean", "mps_best", "against_mps")), error,
               "yes" if cell["losses_identical"] else "NO", "; ".join(notes)]


def summary_text(found):
    summary = found["summary"]
    text = f"{summary['cells']} cells, {summary['counted']} of them count"
    if not summary["counted"]:
        return text + "."
    text += (f": efficiency median {summary['median_efficiency']:.3f}, worst {summary['worst_efficiency']:.3f}; least "
             f"speed {summary['least_speed']:.3f}; least of uncoordinated MPS {summary['least_against_mps']:.3f}")
    if "median_stream_efficiency" in summary:
        text += (f"; with the gate in the GPU's queues median {summary['median_stream_efficiency']:.3f}, worst "
                 f"{summary['worst_stream_efficiency']:.3f}, least of MPS {summary['least_stream_against_mps']:.3f}")
    if summary["median_prediction_error"] is not None:
        text += (f"; the plan is off by {100 * summary['median_prediction_error']:.1f} % (median), "
                 f"{100 * summary['worst_prediction_error']:.1f} % (worst)")
    if summary["handover_us"] is not None:
        text += f"; a hand-over costs {summary['handover_us']:.0f} us (median)"
    return text + "."


def markdown(found):
    lines = [summary_text(found), "", "| " + " | ".join(HEADER) + " |",
             "|---|---|" + "---:|" * (len(HEADER) - 4) + "---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows(found))]) + "\n"


def terminal(found):
    table = [list(HEADER), *rows(found)]
    widths = [max(len(row[k]) for row in table) for k in range(len(HEADER))]
    left = (0, 1, len(HEADER) - 1)
    lines = []
    for row in table:
        cells = (cell.ljust(w) if k in left else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths)))
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, "", summary_text(found)])


def course(windows, span, iterations):
    """[(ms from a window's end to the next one's beginning, ms of that window)] of an iteration, means over the
    iterations of `span`, from the true windows of a process that ran alone. Those too short for a turn belong to the
    compute around them; how short that is, is raised until each iteration has as many. Empty if that never comes. What
    follows the last window of an iteration counts to the first stretch of the next."""
    for least_ns in LEAST_WINDOWS_NS:
        inside = [w for w in clip(windows, span) if w[1] - w[0] >= least_ns]
        each = len(inside) // iterations
        if inside and len(inside) == each * iterations:
            break
    else:
        return []
    before = [span[0] - (span[1] - inside[-1][1]), *(end for _, end in inside)]
    rows = [(start - last, end - start) for last, (start, end) in zip(before, inside)]
    return [tuple(sum(column) / iterations / 1e6 for column in zip(*rows[k::each])) for k in range(each)]


def stages(ranks, span, iterations):
    """[([ms that each rank computes], ms of the message that all then wait for)] of an iteration, means over the
    iterations of `span`, of a job that ran alone. `ranks`: of each, its times of compute and of messages, as
    (start, end). Where a rank computes nothing in between, it only waits: what its program takes then is not counted.
    Empty where the ranks' messages do not end together."""
    messages = [sorted(row for row in rows if span[0] <= row[0] and row[1] <= span[1]) for _, rows in ranks]
    ends = [[end for _, end in rows] for rows in messages]
    each = len(ends[0]) // iterations
    if not each or any(rank != ends[0] for rank in ends) or len(ends[0]) != each * iterations:
        return []
    found = []
    for number, end in enumerate(ends[0]):
        before = ends[0][number - 1] if number else span[0] - (span[1] - ends[0][-1])
        starts = [rows[number][0] for rows in messages]
        computed = [start - before if length(clip(compute, (before, start))) else 0
                    for start, (compute, _) in zip(starts, ranks)]
        found.append([*computed, end - max(starts)])
    steps = [[sum(column) / iterations / 1e6 for column in zip(*found[k::each])] for k in range(each)]
    return [(computed, message) for *computed, message in steps]


def plan_description(cell, alone, measured):
    """(jobs as `crossover plan` reads them, what it shall find in the file `measured`). Of a job whose collectives lie
    as dp_train's do, it is told the length of a turn, M and the buckets; of any other the course of an iteration,
    without what compute hides; and if that is none, the turn's length, M and E."""
    jobs, figures_alone = [], []
    for number, (job, one) in enumerate(zip(cell.jobs, alone), 1):
        name, phases = f"job {number}", one.phases
        if job.pattern in LIKE_DP_TRAIN:
            jobs.append({"name": name, "compute_ms": one.turn_ms, "communicate_ms": phases.communicate,
                         "buckets": job.buckets, "first_bucket": job.first_bucket})
        elif one.course:
            steps = [{"compute_ms": turn, "communicate_ms": message} for turn, message in one.course]
            jobs.append({"name": name, "steps": steps})
        else:
            jobs.append({"name": name, "measured": measured, "job": name, "iterations": 1})
            figures_alone.append({"name": name, "alone": {"compute_seconds": one.turn_ms / 1e3,
                                                          "communicate_seconds": phases.communicate / 1e3,
                                                          "exposed_seconds": phases.exposed / 1e3}})
    return {"jobs": jobs}, {"jobs": figures_alone}
