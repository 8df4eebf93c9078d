# SPDX-License-Identifier: Apache-2.0
"""Benchmark "run-ahead": what waiting costs a job whose CPU is the slower half. Two jobs of many small kernels take
turns, with the launching thread waiting (CROSSOVER_GATE=cpu) and with the GPU's queue waiting (stream); their CPUs
launch as fast as they can, or at a pace of their own, slower than the GPU. Reports the period of each, and of one job
alone. Asserts nothing about time."""

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from intervals import bound, phases, read_truth
from job import Job, JobError, Workload
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail
from together import Start, run_together, shared_window

LIMIT_S = 120
OPTIONS = ["--devices", 2, "--link-gbps", 0.1]
KERNEL_MS = 0.2
GATES = ("cpu", "stream")


class Bench:
    """All figures of one pace; `pace_us` 0 is as fast as it goes."""

    def __init__(self, build, options, pace_us):
        self.build, self.slow = build, build.folder / "tests" / "bench" / "slow_launch.so"
        self.pace_us = pace_us
        self.workload = Workload(compute_ms=options.compute_ms, comm_mb=options.comm_mb, iterations=options.iterations,
                                 extra=("--burn-kernel-ms", str(KERNEL_MS), "--sync-every", "0"))
        with VirtualMachine(build, OPTIONS) as machine:
            with Job("alone", build.program, self.workload, self.paced(machine.environment()), machine.folder) as job:
                self.alone = job.wait(LIMIT_S)
            machine.stop()
            self.phases = phases(read_truth(machine.truth), self.alone.pids, self.alone.window,
                                 len(self.alone.starts))
        self.workload = replace(self.workload, burn_per_ms=self.alone.burn_per_ms)

    def paced(self, environment):
        libraries = [str(self.slow), *filter(None, [environment.get("LD_PRELOAD")])]
        return dict(environment, LD_PRELOAD=":".join(libraries), SLOW_LAUNCH_US=str(self.pace_us))

    @property
    def bound_ms(self):
        return bound([self.phases, self.phases], shared_link=False)

    def pair(self, gate):
        """(period in ms, whether the losses are those of the job alone)."""
        with VirtualMachine(self.build, OPTIONS) as machine:
            given = machine.environment
            machine.environment = lambda preload=False, **added: self.paced(
                given(preload, CROSSOVER_GATE=gate, **added))
            starts = [Start(name, self.build.program, self.workload) for name in ("A", "B")]
            results = run_together(machine, starts, lead_s=2.0, limit_s=LIMIT_S, preload=True)
        window = shared_window(results)
        return (statistics.mean(result.period_ms(window) for result in results),
                all(result.losses == self.alone.losses for result in results))


def measure(options):
    build = Build.from_environment().check()
    report = {"device": VirtualMachine.device, "runs": options.runs, "kernel_ms": KERNEL_MS, "paces": []}
    for pace_us in options.pace_us:
        bench = Bench(build, options, pace_us)
        row = {"pace_us": pace_us, "alone_ms": bench.alone.iteration_ms, "bound_ms": bench.bound_ms,
               "compute_ms": bench.phases.compute, "communicate_ms": bench.phases.communicate, "gates": {}}
        taken = {gate: [] for gate in GATES}
        for _ in range(options.runs):  # in turns: what disturbs the machine disturbs both
            for gate in GATES:
                taken[gate].append(bench.pair(gate))
        for gate, runs in taken.items():
            periods = [period for period, _ in runs]
            row["gates"][gate] = {"period_ms": statistics.median(periods), "periods_ms": periods,
                                  "losses_identical": all(same for _, same in runs)}
        report["paces"].append(row)
    return report


def main(arguments):
    parser = Parser(prog="scripts/bench run-ahead", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--iterations", type=at_least(10), default=60, help="a run (default 60)")
    parser.add_argument("--runs", type=at_least(1), default=3, help="of each (default 3)")
    parser.add_argument("--compute-ms", type=at_least(1, float), default=20, help="of an iteration (default 20)")
    parser.add_argument("--comm-mb", type=at_least(0, float), default=0.25,
                        help="of an iteration (default 0.25: 20 ms)")
    parser.add_argument("--pace-us", type=at_least(0), nargs="+", default=[0, 300], metavar="US",
                        help="least time from one launch of a thread to its next; 0: none (default 0 300)")
    options = parser.parse_args(arguments)
    try:
        report = measure(options)
    except (JobError, MachineError, ValueError) as error:
        fail(str(error))
    print(f"device: {report['device']}; kernels of {KERNEL_MS} ms; periods in ms")
    print(f"{'pace us':>8} {'C':>7} {'M':>7} {'alone':>8} {'bound T*':>9} {'cpu':>8} {'stream':>8} {'stream/cpu':>11} "
          f"{'losses identical':>17}")
    same = True
    for row in report["paces"]:
        cpu, stream = (row["gates"][gate] for gate in GATES)
        same = same and cpu["losses_identical"] and stream["losses_identical"]
        print(f"{row['pace_us']:>8} {row['compute_ms']:>7.2f} {row['communicate_ms']:>7.2f} {row['alone_ms']:>8.2f} "
              f"{row['bound_ms']:>9.2f} {cpu['period_ms']:>8.2f} {stream['period_ms']:>8.2f} "
              f"{stream['period_ms'] / cpu['period_ms']:>11.3f} {'yes' if same else 'NO':>17}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
