# SPDX-License-Identifier: Apache-2.0
"""Benchmark "detection": a job in the way of Horovod beside dp_train, in turns, with each way of seeing the first one's
collectives alone: NCCL's calls (a shared NCCL), its kernels' names, and its profiler interface (a static NCCL). Reports the
efficiency of each, T* over the period. Asserts nothing about time."""

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from intervals import bound, phases, read_truth
from job import Job, JobError, Workload
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail

LIMIT_S = 120
OPTIONS = ["--devices", 2, "--link-gbps", 0.1]
NO_NAMES, NO_PROFILER = {"SIMGPU_NCCL_KERNELS": "gen9_"}, {"NCCL_PROFILER_PLUGIN": "none"}
# name -> (library, what the virtual NCCL does not show)
WAYS = {
    "calls": ("libhvd_shared.so", {**NO_NAMES, **NO_PROFILER}),
    "names": ("libhvd.so", NO_PROFILER),
    "profiler 5": ("libhvd.so", NO_NAMES),
    "profiler 4": ("libhvd.so", {**NO_NAMES, "SIMGPU_NCCL_PROFILER": "4"}),
    "all": ("libhvd.so", {}),
}


class Bench:
    def __init__(self, build, iterations):
        self.build = build
        self.folder = build.folder / "tests" / "workloads" / "horovod_like"
        self.workload = Workload(compute_ms=40, comm_mb=0.25, iterations=iterations, buckets=4)
        self.alone = {}
        for name, program in (("dp_train", build.program), ("hvd_train", self.folder / "hvd_train")):
            with VirtualMachine(build, OPTIONS) as machine:
                with Job(name, program, self.workload, machine.environment(), machine.folder) as job:
                    result = job.wait(LIMIT_S)
                machine.stop()
                found = phases(read_truth(machine.truth), result.pids, result.window, len(result.starts))
            self.alone[name] = result, found
            # Beside another job the programs would find another amount of work in a millisecond.
            self.workload = replace(self.workload, burn_per_ms=result.burn_per_ms)

    @property
    def bound_ms(self):
        return bound([found for _, found in self.alone.values()], shared_link=False)

    def pair(self, library, hidden):
        """Both in turns: (period in ms, whether the losses are those of the jobs alone)."""
        with VirtualMachine(self.build, OPTIONS) as machine:
            program = machine.folder / "program"
            program.write_text(f'#!/bin/sh\nexec "{self.folder}/hvd_train" --library "{self.folder}/{library}" "$@"\n',
                               encoding="utf-8")
            program.chmod(0o700)
            environment = machine.environment(preload=True)
            with Job("A", program, self.workload, dict(environment, **hidden), machine.folder) as a:
                with Job("B", self.build.program, self.workload, environment, machine.folder) as b:
                    results = [a.wait(LIMIT_S), b.wait(LIMIT_S)]
        window = max(r.window[0] for r in results), min(r.window[1] for r in results)
        same = all(r.losses == self.alone["dp_train"][0].losses for r in results)
        return statistics.mean(r.period_ms(window) for r in results), same


def measure(options):
    bench = Bench(Build.from_environment().check(), options.iterations)
    report = {"device": VirtualMachine.device, "bound_ms": bench.bound_ms, "runs": options.runs,
              "alone_ms": {name: result.iteration_ms for name, (result, _) in bench.alone.items()}, "ways": {}}
    for name, (library, hidden) in WAYS.items():
        runs = [bench.pair(library, hidden) for _ in range(options.runs)]
        period = statistics.median(period for period, _ in runs)
        report["ways"][name] = {"period_ms": period, "efficiency": bench.bound_ms / period,
                                "lowest_efficiency": bench.bound_ms / max(period for period, _ in runs),
                                "losses_identical": all(same for _, same in runs)}
    return report


def main(arguments):
    parser = Parser(prog="scripts/bench detection", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--iterations", type=at_least(10), default=40, help="a run (default 40)")
    parser.add_argument("--runs", type=at_least(1), default=3, help="of each way (default 3)")
    options = parser.parse_args(arguments)
    try:
        report = measure(options)
    except (JobError, MachineError, ValueError) as error:
        fail(str(error))
    alone = ", ".join(f"{name} {ms:.2f} ms" for name, ms in report["alone_ms"].items())
    print(f"device: {report['device']}; alone: {alone}; bound for both: {report['bound_ms']:.2f} ms")
    print(f"{'seen by':<12} {'period ms':>10} {'efficiency':>11} {'lowest':>8} {'losses identical':>17}")
    for name, row in report["ways"].items():
        print(f"{name:<12} {row['period_ms']:>10.2f} {row['efficiency']:>11.3f} {row['lowest_efficiency']:>8.3f} "
              f"{'yes' if row['losses_identical'] else 'NO':>17}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["losses_identical"] for row in report["ways"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
