# SPDX-License-Identifier: Apache-2.0
"""Benchmark "windows": for each way of training, whether the communication windows that the library infers are those
that there are. Each runs on the virtual GPU, two ranks on two devices: two jobs in turns, and one alone that is only
observed. The library's events are judged against the virtual GPU's truth log. Two more tables compare a job alone
with and without the library: iteration time, and the time of NCCL's calls on the CPU, each run beside its twin. Cells
that miss their bound are marked with *; --check makes that exit status 1. Columns: docs/windows.md. What is judged
how: scripts/lib/windows.py."""

import json
import math
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

import frameworks
from job import Job, JobError, Workload
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail, monotonic_ns
from recording import recorded_events
from sampling import Sampler
from solo import describe, iteration_times
from windows import add_up, as_shown, judge, read_events, read_operations, read_shown, true_windows

LIMIT_S = 300
# Slow, so that it has little to carry: what the virtual GPU moves and adds on this machine's processors for it, which no
# GPU would, competes with the library's watcher at the very ends of windows.
OPTIONS = ["--link-gbps", 0.025]
LEAST_WINDOW_US = 300  # CROSSOVER_MIN_WINDOW_US; given to the jobs. Where the library asks more, its events say so
BOUND_PART, BOUND_P50_US, BOUND_P99_US = 0.99, 200, 1000
# A job alone counts as slower with the library where even the lower end of the interval is above these: its iterations'
# ratio, and what the calls of an iteration took more, as a part of it.
BOUND_SLOWER, BOUND_CALLS = 1.02, 0.001
T_95 = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's, two-sided, by the number of values
# From the start of two jobs to their first iterations, which are to be at one time; a framework takes longer to load.
START_S, FRAMEWORK_START_S = 3, 10
# Patterns that are about their number of processes, or of devices.
UNSEEN = {"graph_all"}  # whose windows cannot be seen (docs/windows.md): false opens alone are judged
# Without windows turns go by the lease, up to a second each: so much longer, two jobs are seen beside one another.
BY_LEASE, LONGER = {"gloo_cpu"}, 5
ONE_PROCESS, ONE_DEVICE = {"one_process_two_devices": 1}, {"ranks_share_device": 1}


@dataclass(frozen=True)
class Pattern:
    name: str
    program: Path
    asked: Workload
    devices: int = 2
    start_s: int = START_S

    def machine(self, build, keep=None):
        return VirtualMachine(build, ["--devices", self.devices, *OPTIONS], keep)


def known_patterns(build, options):
    """All ways of training, by name: settings of dp_train and hvd_train, whatever `patterns --list` names, and released
    frameworks where they are here."""
    folder = build.folder / "tests" / "workloads"
    usual = Workload(options.compute_ms, options.comm_mb, options.iterations)
    library = ("--library", str(folder / "horovod_like" / "libhvd_shared.so"))
    hvd = folder / "horovod_like" / "hvd_train"
    rows = [
        Pattern("dp_train, 1 bucket", build.program, usual),
        Pattern("dp_train, 4 buckets", build.program, replace(usual, buckets=4)),
        Pattern("dp_train, 4 overlapped", build.program, replace(usual, buckets=4, overlap=True)),
        Pattern("hvd_train, fused", hvd, replace(usual, buckets=4, extra=library)),
        Pattern("hvd_train, not fused", hvd, replace(usual, buckets=4, extra=(*library, "--fusion-mb", "0.001"))),
    ]
    program = folder / "patterns" / "patterns"
    if program.exists():
        with VirtualMachine(build, OPTIONS) as machine:
            done = subprocess.run([program, "--list"], env=machine.environment(), capture_output=True, text=True,
                                  timeout=60, check=False)
        if done.returncode:
            raise MachineError(f"{program} --list ended with {done.returncode}: {done.stderr.strip()}")
        for name in (line.split()[0] for line in done.stdout.splitlines() if line.split()):
            asked = replace(usual, buckets=4, ranks=ONE_PROCESS.get(name, 2), extra=("--pattern", name))
            rows.append(Pattern(name, program, asked, ONE_DEVICE.get(name, 2)))
    released, _ = frameworks.programs(build)
    for name, each in released.items():
        asked = replace(usual, buckets=4, extra=each.arguments)
        rows.append(Pattern(f"released: {name}", each.path, asked, start_s=FRAMEWORK_START_S))
    return {row.name: row for row in rows}


class WatcherCost(Sampler):
    """CPU time of the library's watcher threads while they run; rate() afterwards."""

    period_s = 0.2

    def __init__(self, pids):
        super().__init__()
        self.samples = {pid: [] for pid in pids}

    @staticmethod
    def used_ns(pid):
        total, found = 0, False
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                if (task / "comm").read_text().strip() == "crossover":
                    total += int((task / "schedstat").read_text().split()[0])
                    found = True
        except (OSError, ValueError):
            return None  # the process ends
        return total if found else None

    def sample(self):
        for pid, row in self.samples.items():
            if (used := self.used_ns(pid)) is not None:
                row.append((monotonic_ns(), used))

    def rate(self, pids, span):
        """CPU seconds a second of one process's watchers, mean over the processes; NaN where too few samples are."""
        rates = []
        for pid in pids:
            inside = [s for s in self.samples[pid] if span[0] <= s[0] <= span[1]]
            if len(inside) >= 2:
                rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
        return statistics.mean(rates) if rates else math.nan


def run(build, pattern, asked, names, keep=None, **variables):
    """The jobs side by side under the library: (results, Verdict of all, watcher's rate)."""
    with pattern.machine(build, keep) as machine:
        environment = machine.environment(preload=True, CROSSOVER_MIN_WINDOW_US=str(LEAST_WINDOW_US), SIMGPU_SHOWN="1",
                                          **variables)
        with ExitStack() as stack:
            lines = stack.enter_context(recorded_events(build, machine.shared_folder, machine.folder / "events.jsonl"))
            start_at = monotonic_ns() + pattern.start_s * 1_000_000_000 if len(names) > 1 else None
            jobs = [stack.enter_context(Job(name, pattern.program, asked, environment, machine.folder, start_at))
                    for name in names]
            cost = stack.enter_context(WatcherCost([pid for job in jobs for pid in job.pids]))
            results = [job.wait(LIMIT_S) for job in jobs]
        machine.stop()
        operations = {client: as_shown(rows, read_shown(machine.truth.parent / f"shown.{client[1]}.jsonl"))
                      for client, rows in read_operations(machine.truth).items()}
    span = max(r.window[0] for r in results), min(r.window[1] for r in results)
    if span[1] <= span[0]:
        raise JobError(f"{pattern.name}: the jobs were never in their measured iterations at the same time")
    events, lost = read_events(lines)
    if any(begin < span[1] and end > span[0] for begin, end in lost):
        raise JobError(f"{pattern.name}: events of the judged time were overwritten before they were read")
    pids = [pid for result in results for pid in result.pids]
    mine = [client for client in operations if client[1] in pids]
    unseen = [client for client in mine if client not in events]
    if unseen or not mine:
        raise JobError(f"{pattern.name}: no events of (device, process) {unseen or pids}")
    # A job that is only observed computes on before anybody can have seen its window's end.
    late_ns = BOUND_P99_US * 1000 if variables.get("CROSSOVER") == "observe" else 0
    verdict = add_up(judge(true_windows(operations[c]), events[c], span, LEAST_WINDOW_US * 1000, late_ns) for c in mine)
    return results, verdict, cost.rate(pids, span)


def part_bound(count, total_ns):
    """What precision and recall must reach: 99 %, or where windows are so short that the latency allowed each of them
    is more than 1 % of their time, what that leaves."""
    return min(BOUND_PART, 1 - count * BOUND_P50_US * 1000 / total_ns) if total_ns else 0.0


def figures(verdict, rate, seen):
    """Plain figures of a verdict, and the names of those that miss their bound."""
    row = {
        "windows": verdict.true_windows, "window_ms": verdict.true_ns / 1e6, "missed": verdict.missed,
        "precision": verdict.precision, "recall": verdict.recall, "inferred": verdict.inferred_windows,
        "latency_p50_us": verdict.latency_ns(0.5) / 1e3, "latency_p99_us": verdict.latency_ns(0.99) / 1e3,
        "set_aside": verdict.set_aside, "false_opens": verdict.false_opens, "late_opens": verdict.late_opens, "given_back": verdict.given_back,
        "short": verdict.short_windows,
        "short_ms": verdict.short_ns / 1e6, "short_given": verdict.short_given, "watcher_cpu": rate,
    }
    missed = []
    if verdict.false_opens:
        missed.append("false_opens")
    if verdict.true_windows and seen:
        # A comparison with NaN is false: what could not be had misses its bound.
        bounds = {
            "precision": row["precision"] >= part_bound(verdict.inferred_windows, verdict.inferred_ns),
            "recall": row["recall"] >= part_bound(verdict.true_windows, verdict.true_ns),
            "latency_p50_us": row["latency_p50_us"] <= BOUND_P50_US,
            "latency_p99_us": row["latency_p99_us"] <= BOUND_P99_US,
        }
        missed += [name for name, good in bounds.items() if not good]
    row["missed_bounds"] = missed
    return row


def measure_windows(build, pattern, options, report):
    asked = pattern.asked
    keep = Path(options.keep) / pattern.name.replace(" ", "_").replace(",", "") if options.keep else None
    results, verdict, rate = run(build, pattern, asked, ["A"], keep and keep / "alone", CROSSOVER="observe")
    report["alone"] = figures(verdict, rate, pattern.name not in UNSEEN)
    # Beside another job the programs would find another amount of work in a millisecond.
    asked = replace(asked, burn_per_ms=results[0].burn_per_ms)
    if pattern.name in BY_LEASE:
        asked = replace(asked, iterations=LONGER * asked.iterations)
    both, verdict, rate = run(build, pattern, asked, ["A", "B"], keep and keep / "in_turns")
    report["in turns"] = figures(verdict, rate, pattern.name not in UNSEEN)
    report["losses_identical"] = all(result.losses[:len(results[0].losses)] == results[0].losses for result in both)
    return replace(asked, iterations=pattern.asked.iterations // 2)


def call_times(folder):
    """ns of each NCCL call that submits, of all ranks."""
    return sorted(int(line) for path in folder.glob("calls.*") for line in path.read_text().split())


def measure_solo(build, pattern, asked, rounds):
    """A job alone with and without the library, in turns: iteration times and the CPU time of NCCL's calls."""
    timer = build.folder / "tests" / "bench" / "windows_calls.so"
    sides, calls = {"bare": [], "preloaded": []}, {"bare": [], "preloaded": []}
    for number in range(rounds):
        for side in list(sides) if number % 2 == 0 else reversed(list(sides)):
            with pattern.machine(build) as machine:
                environment = machine.environment(WINDOWS_CALLS=str(machine.folder / "calls"))
                preloaded = [timer] if side == "bare" else [timer, build.library]
                environment["LD_PRELOAD"] = ":".join(map(str, preloaded))
                with Job(side, pattern.program, asked, environment, machine.folder) as job:
                    result = job.wait(LIMIT_S)
                sides[side].append(iteration_times(result))
                calls[side].append(call_times(machine.folder))
    bare, preloaded = (describe(sides[side]) for side in sides)
    row = {"bare": bare, "preloaded": preloaded, "ratio": preloaded["median_ms"] / bare["median_ms"],
           "spread": bare["spread_ms"] / bare["median_ms"]}
    medians = {side: [statistics.median(run) for run in calls[side] if run] for side in sides}
    for side in sides:
        row[f"call_us_{side}"] = statistics.median(medians[side]) / 1e3 if medians[side] else math.nan
    row["calls"] = min((len(run) for side in sides for run in calls[side]), default=0)
    row["call_added_us"] = interval([(b - a) / 1e3 for a, b in zip(medians["bare"], medians["preloaded"])])
    iteration_us = bare["median_ms"] * 1e3
    a_rank = row["calls"] / asked.ranks / (asked.iterations + asked.warmup)
    row["calls_part"] = [each * a_rank / iteration_us for each in row["call_added_us"] or ()]
    row["iteration_ratio"] = interval([statistics.median(b) / statistics.median(a)
                                       for a, b in zip(sides["bare"], sides["preloaded"])])
    bounds = {"calls_part": BOUND_CALLS, "iteration_ratio": BOUND_SLOWER}
    row["missed_bounds"] = [name for name, most in bounds.items() if row[name] and row[name][0] > most]
    return row


def interval(values):
    """(lowest, highest) of the 95 % confidence interval of the rounds' mean; None of fewer than three."""
    if len(values) < 3:
        return None
    half = T_95.get(len(values), 2.2) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


WINDOW_COLUMNS = (
    ("windows", "windows", "{:d}"), ("set aside", "set_aside", "{:d}"), ("ms", "window_ms", "{:.0f}"), ("missed", "missed", "{:d}"),
    ("precision", "precision", "{:.4f}"), ("recall", "recall", "{:.4f}"), ("p50 us", "latency_p50_us", "{:.0f}"),
    ("p99 us", "latency_p99_us", "{:.0f}"), ("false opens", "false_opens", "{:d}"), ("given", "given_back", "{:d}"),
    ("short", "short", "{:d}"), ("given", "short_given", "{:d}"), ("watcher %", "watcher_cpu", "{:.2%}"),
)


def window_table(report):
    yield ["pattern", "run", *(title for title, _, _ in WINDOW_COLUMNS)]
    for name, row in report["patterns"].items():
        for side in ("alone", "in turns"):
            cells = []
            for _, key, form in WINDOW_COLUMNS:
                value = row[side][key]
                text = "-" if isinstance(value, float) and math.isnan(value) else form.format(value).rstrip("%")
                cells.append(text + ("*" if key in row[side]["missed_bounds"] else ""))
            yield [name, "observed, alone" if side == "alone" else side, *cells]


def solo_table(report):
    yield ["pattern", "bare ms", "preloaded ms", "ratio", "spread of bare", "call us, bare", "call us, preloaded"]
    for name, row in report["patterns"].items():
        if solo := row.get("solo"):
            calls = ["-" if math.isnan(solo[f"call_us_{side}"]) else f"{solo[f'call_us_{side}']:.1f}"
                     for side in ("bare", "preloaded")]
            yield [name, f"{solo['bare']['median_ms']:.3f}", f"{solo['preloaded']['median_ms']:.3f}",
                   f"{solo['ratio']:.4f}", f"{solo['spread']:.4f}", *calls]


def submission_table(report):
    yield ["pattern", "calls a run", "bare us", "preloaded us", "added us a call", "part of an iteration",
           "iteration, preloaded / bare"]
    for name, row in report["patterns"].items():
        if (solo := row.get("solo")) and solo["calls"]:
            ratios = []
            for key, form in (("call_added_us", "{:.1f} to {:.1f}"), ("calls_part", "{:.3%} to {:.3%}"),
                              ("iteration_ratio", "{:.3f} to {:.3f}")):
                mark = "*" if key in solo["missed_bounds"] else ""
                ratios.append(form.format(*solo[key]) + mark if solo[key] else "-")
            yield [name, str(solo["calls"]), f"{solo['call_us_bare']:.2f}", f"{solo['call_us_preloaded']:.2f}", *ratios]


def print_table(rows, markdown):
    rows = list(rows)
    if markdown:
        rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
        print("\n".join(f"| {' | '.join(row)} |" for row in rows), flush=True)
        return
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths))))


def plain(value):
    """For JSON, which knows no NaN."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def main(arguments):
    parser = Parser(prog="scripts/bench windows", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--pattern", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the patterns")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a figure misses its bound")
    parser.add_argument("--markdown", action="store_true", help="print the tables as in docs/windows.md")
    parser.add_argument("--iterations", type=at_least(10), default=60,
                        help="a run (default 60; half of it where a job alone is timed)")
    parser.add_argument("--compute-ms", type=at_least(0.0, float), default=40, help="an iteration (default 40)")
    parser.add_argument("--comm-mb", type=at_least(0.0, float), default=0.125,
                        help="all-reduced MB (default 0.125: 40 ms)")
    parser.add_argument("--rounds", type=at_least(0), default=4,
                        help="runs of each side of the job alone (default 4; 0: no such comparison)")
    parser.add_argument("--keep", metavar="DIR", help="keep logs, events and truth logs there")
    options = parser.parse_args(arguments)
    report = {"device": VirtualMachine.device, "least_window_us": LEAST_WINDOW_US, "patterns": {}}
    failed = []
    try:
        build = Build.from_environment().check()
        known = known_patterns(build, options)
        unknown = [name for name in options.pattern or () if name not in known]
        if unknown:
            parser.error(f"--pattern '{unknown[0]}'; allowed: {', '.join(repr(name) for name in known)}")
        if options.list:
            print("\n".join(known))
            return 0
        for name in options.pattern or known:
            row = {}
            try:
                asked = measure_windows(build, known[name], options, row)
                if options.rounds:
                    row["solo"] = measure_solo(build, known[name], asked, options.rounds)
            except JobError as error:
                failed.append(str(error))  # the others are worth having all the same
                print(f"  {name}: failed", file=sys.stderr, flush=True)
                continue
            report["patterns"][name] = row
            print(f"  {name}: done", file=sys.stderr, flush=True)
    except (MachineError, ValueError) as error:
        fail(str(error))
    for line in failed:
        print(f"windows.py: {line}", file=sys.stderr, flush=True)
    print_table(window_table(report), options.markdown)
    if options.rounds:
        print()
        print_table(solo_table(report), options.markdown)
        print()
        print_table(submission_table(report), options.markdown)
    rows = report["patterns"].items()
    different = [name for name, row in rows if not row["losses_identical"]]
    for name in different:
        print(f"{name}: the losses in turns are NOT those of the job alone")
    if options.json:
        Path(options.json).write_text(json.dumps(plain(report), indent=2) + "\n", encoding="utf-8")
    missed = any(row[side]["missed_bounds"] for _, row in rows for side in ("alone", "in turns", "solo") if side in row)
    return 1 if failed or different or options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
