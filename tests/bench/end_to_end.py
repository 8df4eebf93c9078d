# SPDX-License-Identifier: Apache-2.0
"""Benchmark "end-to-end": two jobs started in two shells with nothing but LD_PRELOAD, a third that joins and leaves, one
killed with SIGKILL while it has the turn. Reports efficiency, how much of one job's compute another's fell into, and how
long the survivor stood still. Asserts nothing about time."""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("scripts/lib", "tests/end_to_end")]

import scenarios
from intervals import bound
from job import JobError
from machine import Build, MachineError, Parser, VirtualMachine, fail


def measure(build):
    bench = scenarios.Bench(build)
    limit = bound([bench.alone, bench.alone], shared_link=False)
    shells = scenarios.two_shells(bench)
    third = scenarios.third_job(bench)
    kill = scenarios.kill_holder(bench)
    return {
        "device": VirtualMachine.device,
        "solo_iteration_ms": bench.reference.iteration_ms,
        "bound_ms": limit,
        "two_shells": {"period_ms": shells["period_ms"], "efficiency": limit / shells["period_ms"],
                       "both_computing": shells["both_computing"],
                       "losses_identical": all(map(bench.same_losses, shells["results"]))},
        "third_job": {"both_computing": {part: third[part] for part in ("before", "during", "after")},
                      "losses_identical": all(map(bench.same_losses, [*third["results"], third["third"]]))},
        "killed_in_its_turn": {"survivor_longest_gap_ms": kill["gap_ms"],
                               "longest_gap_before_ms": kill["usual_gap_ms"],
                               "losses_identical": bench.same_losses(kill["survivor"])},
    }


def main(arguments):
    parser = Parser(prog="scripts/bench end-to-end", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    try:
        report = measure(Build.from_environment().check())
    except (JobError, MachineError, ValueError) as error:
        fail(str(error))
    shells, third, kill = (report[part] for part in ("two_shells", "third_job", "killed_in_its_turn"))
    print(f"device: {report['device']}; a job alone: {report['solo_iteration_ms']:.2f} ms an iteration; "
          f"bound for two: {report['bound_ms']:.2f} ms")
    print(f"two shells: period {shells['period_ms']:.2f} ms, efficiency {shells['efficiency']:.3f}, "
          f"{100 * shells['both_computing']:.1f} % of A's compute beside B's")
    parts = ", ".join(f"{part} {100 * value:.1f} %" for part, value in third["both_computing"].items())
    print(f"third job: part of A's compute beside B's: {parts}")
    print(f"killed in its turn: the survivor's longest time without compute {kill['survivor_longest_gap_ms']:.1f} ms "
          f"(before: {kill['longest_gap_before_ms']:.1f} ms)")
    good = all(part["losses_identical"] for part in (shells, third, kill))
    print(f"losses identical everywhere: {'yes' if good else 'NO'}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
