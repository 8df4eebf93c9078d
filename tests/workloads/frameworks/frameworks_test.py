# SPDX-License-Identifier: Apache-2.0
"""frameworks_test.py PATTERN: a released framework trains dp_train's network on the virtual GPU as dp_train does, to the
last bit: alone without the library, and as two jobs with it, which take turns. No times. Exit status 77 where the
framework is not here, which is told."""

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

import frameworks
from job import Job, Workload
from machine import Build, VirtualMachine
from recording import grants, recorded_events
from virtual_runtime import REFUSED

# A long enough iteration that the jobs meet; the link is slow, so that there is little to carry.
OPTIONS = ["--devices", 2, "--link-gbps", 0.05]
WORKLOAD = Workload(compute_ms=20, comm_mb=0.125, buckets=4, iterations=20)
TURNS = 5  # of each job on each device, at least
LIMIT_S = 200


def trained(build, program, workload, names, preload):
    """What rank 0 of each job reports, all that the ranks say, and the number of turns by (device, job). Several jobs begin
    together."""
    with VirtualMachine(build, OPTIONS) as machine:
        if len(names) > 1:
            meeting = machine.folder / "meeting"
            meeting.mkdir()
            workload = replace(workload, extra=(*workload.extra, "--meet", str(meeting), str(len(names))))
        with ExitStack() as stack:
            lines = stack.enter_context(recorded_events(build, machine.shared_folder, machine.folder / "events.jsonl"))
            jobs = [stack.enter_context(Job(name, program, workload, machine.environment(preload), machine.folder))
                    for name in names]
            for job in jobs:
                job.wait(LIMIT_S)
        reports = [json.loads(job.report.read_text(encoding="utf-8")) for job in jobs]
        said = "".join(job.log(rank) for job in jobs for rank in range(workload.ranks))
    return reports, said, grants(lines)


def main():
    name, build = sys.argv[1], Build.from_environment().check()
    programs, absent = frameworks.programs(build)
    if name not in programs:
        print("\n".join(absent))
        return 77
    (plain,), _, _ = trained(build, build.program, replace(WORKLOAD, overlap=True), ["dp_train"], False)
    program = programs[name]
    workload = replace(WORKLOAD, extra=program.arguments, burn_per_ms=plain["burn_per_ms"])
    found = []
    for preload, names in ((False, ["alone"]), (True, ["A", "B"])):
        reports, said, turns = trained(build, program.path, workload, names, preload)
        for job, report in zip(names, reports):
            found += [f"{job}: {key} {report[key]} instead of {plain[key]}" for key in ("losses", "parameters_hash")
                      if report[key] != plain[key]]
        if preload and sum(count >= TURNS for count in turns.values()) != 4:
            found.append(f"turns by device and job: {dict(turns)}")
        if REFUSED in said or "crossover:" in said:
            found.append(f"said: {said}")
    print("\n".join(found) or "equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
