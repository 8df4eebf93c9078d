# SPDX-License-Identifier: Apache-2.0
"""The demo's command line: which settings, where the results go, what is printed when. See scripts/demo.sh --help."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import chart
import report
from job import JobError, Workload
from machine import REPOSITORY, Build, MachineError, Parser, fail, find_gpus
from runs import Bench, Setting, measure

# 0.1 Gbit/s moves 0.25 MB in 20 ms: a small buffer keeps the copying of this machine's own processors out of the figures.
SETTINGS = {
    "separate": Setting("separate", "C = 40 ms, M = 20 ms, a link of its own for each job",
                        Workload(compute_ms=40, comm_mb=0.25, iterations=30), shared_link=False, link_gbps=0.1),
    "overlap": Setting("overlap", "C = 40 ms, M = 20 ms in 4 buckets beside the backward pass, one link for both jobs",
                       Workload(compute_ms=40, comm_mb=0.25, iterations=30, buckets=4, overlap=True), shared_link=True, link_gbps=0.1),
}


def parse(arguments):
    parser = Parser(prog="scripts/demo.sh", description="Two training jobs of two ranks each on the "
                                     "same two devices: one after the other, together in three ways, and with Crossover.")
    parser.add_argument("--setting", choices=sorted(SETTINGS), help="only this one")
    parser.add_argument("--quick", action="store_true", help="a third of the iterations: a look, not a measurement")
    parser.add_argument("--keep", action="store_true", help="keep logs and truth logs in build/demo/runs")
    parser.add_argument("--virtual", action="store_true", help="the virtual GPU even where there is a real one")
    parser.add_argument("--output", default=str(REPOSITORY / "build" / "demo"), help="folder (default build/demo)")
    return parser.parse_args(arguments)


def shorter(setting):
    workload = setting.workload
    return replace(setting, workload=replace(workload, iterations=max(8, workload.iterations // 3)))


def notes(outcomes):
    """What makes this machine's figures doubtful."""
    found = []
    late = max(run.late_ms for outcome in outcomes for run in outcome.modes.values())
    if late > 2.0:
        found.append(f"a job began {late:.1f} ms later than asked, so its offset is not the one named")
    load = os.getloadavg()[0]
    if load > os.cpu_count() + 1:
        found.append(f"this machine is busy (load {load:.1f} on {os.cpu_count()} processors): jobs were held up at random")
    return found


def main(arguments):
    options = parse(arguments)
    output = Path(options.output)
    runs_folder = output / "runs"
    chosen = [SETTINGS[options.setting]] if options.setting else list(SETTINGS.values())
    if options.quick:
        chosen = [shorter(setting) for setting in chosen]
    gpus = [] if options.virtual else find_gpus()
    device = f"{len(gpus)} x {gpus[0]}" if gpus else "virtual GPU"
    if gpus:
        print(f"device: {device}" + (", both ranks of each job on it" if len(gpus) == 1 else ""))
    else:
        print("device: virtual GPU (a timed model, see tests/simgpu/README.md; its figures are not a GPU's)")
    try:
        output.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(runs_folder, ignore_errors=True)
        bench = Bench(Build.from_environment().check(), runs_folder if options.keep else None, gpus)
        outcomes = []
        for setting in chosen:
            print(f"\n{setting.title}")
            timeline = output / "timeline" if setting is chosen[0] else None
            outcomes.append(measure(bench, setting, timeline, lambda what: print(f"  {what} ...", flush=True)))
        result = report.as_json(device, outcomes)
        (output / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        (output / "table.md").write_text("\n\n".join(map(report.markdown, outcomes)) + "\n", encoding="utf-8")
        (output / "periods.svg").write_text(chart.chart(result), encoding="utf-8")
    except (JobError, MachineError, ValueError, OSError) as error:
        fail(str(error))
    for outcome in outcomes:
        print("\n" + report.terminal(outcome))
    for note in notes(outcomes):
        print(f"note: {note}")
    print(f"\nresults: {output}/result.json, table.md, periods.svg; who ran when: {output}/timeline.html")
    return 0 if all(run.losses_identical for o in outcomes for run in o.modes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
