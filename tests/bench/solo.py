# SPDX-License-Identifier: Apache-2.0
"""Benchmark "solo": a job alone on its devices, with and without the preload, in turns (bare, preloaded, preloaded, bare,
...) on one machine. Reports each side's median iteration time, the spread of the bare runs' medians, and the difference.
It asserts nothing: whether the difference lies within the spread is for the reader and for docs/performance.md."""

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from job import Job, JobError, Workload
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail


def iteration_times(result):
    return [(end - start) / 1e6 for start, end in zip(result.starts, result.ends)]


def describe(runs):
    """Of the runs of one side: median of their medians, and the range those medians span, in ms."""
    medians = [statistics.median(run) for run in runs]
    return {"median_ms": statistics.median(medians), "low_ms": min(medians), "high_ms": max(medians),
            "spread_ms": max(medians) - min(medians), "runs": len(runs), "iterations": sum(map(len, runs))}


def measure(options):
    build = Build.from_environment().check()
    workload = Workload(options.compute_ms, options.comm_mb, options.iterations, buckets=options.buckets,
                        overlap=options.buckets > 1)
    sides, losses = {"bare": [], "preloaded": []}, []
    order = ["bare", "preloaded", "preloaded", "bare"] * ((options.pairs + 1) // 2)
    with VirtualMachine(build, ["--devices", 2, "--link-gbps", 0.1]) as machine:
        for number, side in enumerate(order[: 2 * options.pairs]):
            environment = machine.environment(preload=side == "preloaded")
            with Job(f"{side}-{number}", build.program, workload, environment, machine.folder) as job:
                result = job.wait(300)
            sides[side].append(iteration_times(result))
            losses.append(result.losses)
            print(f"  {side:<10} {statistics.median(sides[side][-1]):9.3f} ms", flush=True)
    report = {side: describe(runs) for side, runs in sides.items()}
    report["difference_ms"] = report["preloaded"]["median_ms"] - report["bare"]["median_ms"]
    report["spread_ms"] = report["bare"]["spread_ms"]  # of the job that nothing was done to
    report["within_spread"] = abs(report["difference_ms"]) <= report["spread_ms"]
    report["losses_identical"] = all(row == losses[0] for row in losses)
    report["device"] = VirtualMachine.device
    return report


def main(arguments):
    parser = Parser(prog="scripts/bench solo", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--pairs", type=at_least(2), default=6, help="runs of each side (default 6)")
    parser.add_argument("--iterations", type=at_least(10), default=40, help="a run (default 40)")
    parser.add_argument("--compute-ms", type=at_least(0.0, float), default=20, help="compute an iteration (default 20)")
    parser.add_argument("--comm-mb", type=at_least(0.0, float), default=0.125, help="all-reduced bytes, MB (default 0.125)")
    parser.add_argument("--buckets", type=at_least(1), default=4, help="gradient buckets, overlapped if several (default 4)")
    options = parser.parse_args(arguments)
    try:
        report = measure(options)
    except (JobError, MachineError) as error:
        fail(str(error))
    print(f"{'side':<10} {'median ms':>10} {'lowest run':>11} {'highest run':>12} {'runs':>5}")
    for side in ("bare", "preloaded"):
        row = report[side]
        print(f"{side:<10} {row['median_ms']:>10.3f} {row['low_ms']:>11.3f} {row['high_ms']:>12.3f} {row['runs']:>5}")
    print(f"difference {report['difference_ms']:+.3f} ms; spread of the bare runs {report['spread_ms']:.3f} ms; "
          f"losses identical: {'yes' if report['losses_identical'] else 'NO'}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if report["losses_identical"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
