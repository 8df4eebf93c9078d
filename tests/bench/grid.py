# SPDX-License-Identifier: Apache-2.0
"""Benchmark "grid": how close jobs in turns come to the bound T*, over some forty cells: ratio of compute to
communication, exposed part, number of jobs, devices and nodes, one link or several, equal and unequal jobs, ways of
training. Every cell runs each job alone, all side by side under MPS at several offsets, and all with the library; some
also time-sliced. The same cells are predicted by `crossover plan` from what was measured of the jobs alone.
docs/efficiency.md says what the columns mean. What is testable without a run is in scripts/lib/grid_*.py; right or
wrong is judged by losses alone."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

import grid_figures as figures
from grid_cells import LINK_GBPS, all_cells
from heat_map import heat_map
from intervals import clip, iteration_ends, mean_period, read_truth
from job import Job, JobError, Workload
from machine import (REPOSITORY, Build, MachineError, Parser, VirtualMachine, at_least, fail, node_environment,
                     node_prefix)
from markers import replace_between
from together import Start, measured_phases, run_together, shared_window
from windows import read_operations, seamless, true_windows

LIMIT_S = 180
WARMUP = 8  # iterations before those measured, in which jobs on several devices come to one order (arbiter/README.md)
STREAM_WARMUP = WARMUP + 28  # with the gate in the queues, where it is first tried whether hidden communication gives way
# Starts apart under MPS; length of the measured part of a run, its iterations at least.
USUAL = {"offsets": 3, "target_ms": 1500.0, "iterations": 16}
QUICK = {"offsets": 2, "target_ms": 1000.0, "iterations": 12}
DOCUMENT, PICTURE = REPOSITORY / "docs" / "efficiency.md", REPOSITORY / "docs" / "images" / "efficiency.svg"
BEGIN, END = "<!-- grid: made by scripts/bench grid --publish -->", "<!-- end of grid -->"


class HostLoad:
    """Part of this machine's processors in use while the context lasts, by anybody."""

    def __enter__(self):
        self.begin = self.times()
        self.busy = 0.0
        return self

    def __exit__(self, *_):
        idle, total = (now - then for now, then in zip(self.times(), self.begin))
        self.busy = 1 - idle / total if total > 0 else 0.0

    @staticmethod
    def times():
        row = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        return row[3] + row[4], sum(row)


class Grid:
    """Runs cells. A job alone is run once for all cells that ask for the same."""

    def __init__(self, build, options):
        self.build, self.options = build, options
        self.keep = Path(options.keep) if options.keep else None
        self.known = {}  # what was asked -> (Result, Alone)
        self.burn_per_ms = 0.0
        patterns = build.folder / "tests" / "workloads" / "patterns" / "patterns"
        self.programs = {False: build.program, True: patterns}

    def program(self, job):
        return self.programs[bool(job.pattern)]

    def machine(self, cell, sharing, label):
        options = ["--devices", cell.devices * cell.nodes, "--sharing", sharing, "--link-gbps", LINK_GBPS]
        options += ["--shared-link"] if cell.shared_link else []
        options += ["--nodes", cell.nodes] if cell.nodes > 1 else []
        return VirtualMachine(self.build, options, self.keep and self.keep / cell.name / label)

    @staticmethod
    def rank_environment(cell, machine, **variables):
        """On several machines each rank gets what its machine has; two ranks of a job on one device name two hosts."""

        def of(_, rank):
            node, local = divmod(rank, cell.devices * cell.ranks_a_device)
            own = variables | {"LOCAL_RANK": str(local // cell.ranks_a_device)}
            if cell.ranks_a_device > 1:
                own["NCCL_HOSTID"] = f"rank{rank}"
            if cell.nodes > 1:
                own |= node_environment(machine, node, cell.devices)
            return own

        return of

    @staticmethod
    def rank_prefix(cell):
        if cell.nodes == 1:
            return None
        return lambda _, rank: node_prefix(rank // (cell.devices * cell.ranks_a_device))

    def calibrate(self, most_tries=8):
        """How much work is a millisecond: the virtual GPU's for all programs, so they need not find out each by itself.
        A busy machine disturbs that, and makes a millisecond seem longer, never shorter: so until the highest two of
        several tries agree."""
        workload = Workload(1.0, 0.01, iterations=1, warmup=0)
        found = []
        while len(found) < most_tries and (len(found) < 2 or found[-2] < found[-1] * 0.995):
            with VirtualMachine(self.build, ["--devices", workload.ranks]) as machine:
                with Job("calibrate", self.build.program, workload, machine.environment(), machine.folder) as job:
                    found = sorted([*found, job.wait(LIMIT_S).burn_per_ms])
        self.burn_per_ms = found[-1]

    def alone(self, cell, number, job, workload):
        """(Result, Alone) of one job of the cell by itself."""
        asked = (workload, cell.devices, cell.nodes)
        if asked not in self.known:
            with self.machine(cell, "mps", f"alone-{number + 1}") as machine:
                ranks = self.rank_environment(cell, machine)
                with HostLoad() as load, Job(f"job{number + 1}", self.program(job), workload, machine.environment(),
                                             machine.folder, rank_environment=ranks,
                                             rank_prefix=self.rank_prefix(cell)) as started:
                    result = started.wait(LIMIT_S)
                phases = measured_phases(machine, result)
                course = self.course(machine, job, result)
                computed = self.computed(machine, result)
            exact = 0.0 if job.pattern else job.alone_ms
            times = [(end - start) / 1e6 for start, end in zip(result.starts, result.ends)]
            spread = figures.spread(times)
            self.known[asked] = result, figures.Alone(result.iteration_ms, phases, exact, spread, load.busy, course,
                                                    computed)
        return self.known[asked]

    @staticmethod
    def course(machine, job, result):
        """Where the planner needs it: of the ranks, or of rank 0 where all do the same."""
        if job.pattern in figures.LIKE_DP_TRAIN:
            return []
        operations = {pid: rows for (_, pid), rows in read_operations(machine.truth).items()}
        if not set(result.pids) <= set(operations):
            return []
        if job.pattern in figures.IN_STAGES:
            ranks = [[[(row.start, row.end) for row in operations[pid] if row.kind == kind]
                      for kind in ("compute", "communicate")] for pid in result.pids]
            return figures.stages(ranks, result.window, len(result.starts))
        windows = true_windows(operations[result.pids[0]]).windows
        return figures.course(windows, result.window, len(result.starts))

    @staticmethod
    def computed(machine, result):
        """By device, when any process of a job that ran alone computed there, and its iterations. Gaps too short for a
        turn count as compute."""
        found = defaultdict(list)
        for (device, pid), kinds in read_truth(machine.truth).items():
            if pid in result.pids:
                found[device] += clip(kinds["compute"], result.window)
        return {device: (seamless(rows, figures.LEAST_WINDOWS_NS[0]), list(zip(result.starts, result.ends)))
                for device, rows in found.items()}

    def shared(self, cell, starts, references, sharing, label, preload, **variables):
        """All jobs at once: grid_figures.Shared."""
        processes = len(starts) * cell.ranks
        with self.machine(cell, sharing, label) as machine:
            with HostLoad() as load:
                results = run_together(machine, starts, 0.6 + 0.1 * processes, LIMIT_S, preload,
                                       rank_environment=self.rank_environment(cell, machine, **variables),
                                       rank_prefix=self.rank_prefix(cell))
            machine.stop()
            window = shared_window(results)
            lanes = read_truth(machine.truth)
            parts = figures.computing_parts(lanes, [r.pids for r in results], window, cell.devices * cell.nodes)
            periods = [self.period_ms(lanes, result, window) for result in results]
        same = all(result.losses[:len(losses)] == losses for result, losses in zip(results, references))
        late_ms = max(result.late_ms for result in results)
        return figures.Shared(periods, same, late_ms, load.busy, *parts)

    @staticmethod
    def period_ms(lanes, result, window):
        """Of a job beside others in the window: from one iteration's communication to the next's on the device, or
        where iterations communicate now more and now less often, by the program's own times."""
        mine = [kinds for (_, pid), kinds in lanes.items() if pid == result.pids[0]]
        collectives = [row for kinds in mine for row in kinds["communicate"]]
        ends = iteration_ends(collectives, result.window, len(result.starts))
        return mean_period(ends, window) or result.period_ms(window)

    def run(self, cell, progress):
        outcome = figures.Outcome(cell)
        workloads = [replace(workload, burn_per_ms=self.burn_per_ms, warmup=WARMUP)
                     for workload in cell.workloads(self.options.target_ms, self.options.iterations)]
        references = []
        for number, (job, workload) in enumerate(zip(cell.jobs, workloads)):
            progress(f"job {number + 1} alone")
            result, alone = self.alone(cell, number, job, workload)
            outcome.alone.append(alone)
            references.append(result.losses)

        def starts(part, warmup):
            apart_ms = part * max(alone.period_ms for alone in outcome.alone)
            return [Start(f"job{k + 1}", self.program(job), replace(workload, warmup=warmup), k * apart_ms)
                    for k, (job, workload) in enumerate(zip(cell.jobs, workloads))]

        def run(what, sharing, label, preload, part=0.0, warmup=WARMUP, **variables):
            progress(what)
            return self.shared(cell, starts(part, warmup), references, sharing, label, preload, **variables)

        for k in range(self.options.offsets):
            part = k / self.options.offsets
            outcome.uncoordinated.append(run(f"MPS, {part:.2f} iterations apart", "mps", f"mps-{k}", False, part))
        outcome.crossover = run("in turns", "mps", "crossover", True)
        if self.options.stream_gate:
            outcome.crossover_stream = run("in turns, gate in the queues", "mps", "crossover-stream", True,
                                           warmup=STREAM_WARMUP, CROSSOVER_GATE="stream")
        if cell.timesliced:
            outcome.sliced = run("time-sliced", "timeslice", "timeslice", False)
            outcome.crossover_sliced = run("in turns, time-sliced", "timeslice", "crossover-timeslice", True)
        outcome.planned_ms = self.plan(cell, outcome.alone)
        return outcome

    def plan(self, cell, alone):
        """Periods of the jobs, as `crossover plan` predicts them."""
        with self.machine(cell, "mps", "plan") as machine:  # for its folder
            paths = [machine.folder / f"{name}.json" for name in ("jobs", "measured", "plan")]
            for path, text in zip(paths, figures.plan_description(cell, alone, paths[1].name)):
                path.write_text(json.dumps(text), encoding="utf-8")
            command = [self.build.crossover, "plan", "--together", "--json", paths[2], "--nodes", str(cell.nodes),
                       "--devices", str(cell.devices), *([] if cell.shared_link else ["--separate-links"]),
                       *self.options.plan, paths[0]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            if done.returncode:
                raise MachineError(f"crossover plan ended with {done.returncode}: {done.stderr.strip()}")
            group = json.loads(paths[2].read_text(encoding="utf-8"))["groups"][0]
            return [job["together_ms"] for job in group["jobs"]]


def measure(options, cells):
    grid = Grid(Build.from_environment().check(), options)
    missing = [path for path in grid.programs.values() if not path.exists()]
    if missing:
        raise MachineError(f"{missing[0]} is missing; build it first (scripts/test.sh)")
    grid.calibrate()
    outcomes = []
    for number, cell in enumerate(cells, 1):
        print(f"[{number}/{len(cells)}] {cell.name}: {cell.text}", file=sys.stderr, flush=True)
        try:
            outcomes.append(grid.run(cell, lambda what: print(f"    {what}", file=sys.stderr, flush=True)))
        except (JobError, MachineError, ValueError, OSError, subprocess.SubprocessError) as error:
            outcomes.append(figures.Outcome(cell, error=str(error)))
            print(f"    failed: {error}", file=sys.stderr, flush=True)
    return figures.report(outcomes, VirtualMachine.device)


def chosen_cells(parser, options):
    cells = [cell for cell in all_cells() if cell.quick or not options.quick]
    try:
        wanted = re.compile(options.cells)
    except re.error as error:
        parser.error(f"--cells '{options.cells}' is no regular expression ({error})")
    found = [cell for cell in cells if wanted.search(cell.name)]
    if not found:
        parser.error(f"--cells '{options.cells}' fits no cell; --list names them")
    return found


def publish(found):
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(heat_map(found), encoding="utf-8")
    picture = os.path.relpath(PICTURE, DOCUMENT.parent)
    note = f"Measured on the {found['device']}, whose figures are not a GPU's."
    text = f"\n{note}\n\n![Efficiency of every cell]({picture})\n\n{figures.markdown(found)}"
    replace_between(DOCUMENT, BEGIN, END, text)


def parse(arguments):
    parser = Parser(prog="scripts/bench grid", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="a few cells that stand for the rest")
    parser.add_argument("--cells", metavar="REGEX", default="", help="only cells whose names fit")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--check", action="store_true", help="exit status 1 if an aim is missed")
    parser.add_argument("--markdown", action="store_true", help="print the table as in docs/efficiency.md")
    parser.add_argument("--plot", metavar="FILE.svg", help="write the heat map there")
    parser.add_argument("--publish", action="store_true", help="put table and heat map into docs/")
    parser.add_argument("--from", dest="source", metavar="FILE", help="figures of an earlier --json instead of a run")
    parser.add_argument("--keep", metavar="DIR", help="keep logs and truth logs there")
    either = {name: f"(default {value:g}, --quick {QUICK[name]:g})" for name, value in USUAL.items()}
    parser.add_argument("--offsets", type=at_least(1), help=f"starts apart under MPS {either['offsets']}")
    parser.add_argument("--target-ms", type=at_least(1, float),
                        help=f"length of the measured part of a run {either['target_ms']}")
    parser.add_argument("--stream-gate", action="store_true",
                        help="all with the library once more with CROSSOVER_GATE=stream")
    parser.add_argument("--iterations", type=at_least(4), help=f"a run at least {either['iterations']}")
    parser.add_argument("--plan", action="append", default=[], metavar="OPTION",
                        help="for crossover plan, as --plan=--seed=2")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else USUAL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options, chosen_cells(parser, options)


def main(arguments):
    options, cells = parse(arguments)
    if options.list:
        for cell in cells:
            print(f"{cell.name:<28} {'quick' if cell.quick else '':<6} {cell.text}")
        return 0
    try:
        if options.source:
            found = json.loads(Path(options.source).read_text(encoding="utf-8"))
        else:
            found = measure(options, cells)
        print(figures.markdown(found) if options.markdown else figures.terminal(found), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        if options.plot:
            Path(options.plot).write_text(heat_map(found), encoding="utf-8")
        if options.publish:
            publish(found)
    except (JobError, MachineError, ValueError, KeyError, OSError) as error:
        fail(str(error))
    missed = figures.missed_aims(found)
    for line in missed:
        print(f"missed: {line}")
    rows = found["cells"].values()
    wrong = any("error" in cell or not cell["losses_identical"] for cell in rows)
    return 1 if wrong or options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
