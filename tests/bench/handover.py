# SPDX-License-Identifier: Apache-2.0
"""Benchmark "handover": how long it takes until a job that sleeps has the turn another gave back, against a bare wake
of a sleeping process; turns a second with many clients; and what idle jobs cost. The arbiter alone is measured by
handover_probe (its options may be given here: handover_probe --help), whole preloaded programs on the virtual GPU by
this file."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from job import Job, JobError, Workload
from machine import Build, MachineError, Parser, VirtualMachine, at_least, fail

PARTS = ("latency", "turns", "idle", "programs")
WATCHER = "crossover"  # the name of the library's own thread
READY_S, SETTLE_S, STILL_S, JOB_S = 60, 10, 0.5, 300


class Programs:
    """The programs beside those that every machine checks for; MachineError names the first that is missing."""

    def __init__(self, build):
        tests = build.folder / "tests"
        self.probe = tests / "bench" / "handover_probe"
        self.events = tests / "bench" / "handover_events"
        self.guest = tests / "programs" / "guest_cuda"
        self.kernels = tests / "simgpu" / "client" / "simgpu_client_test.simgpu.so"  # what the guest launches

    def check(self, *names):
        for name in names:
            if not getattr(self, name).exists():
                raise MachineError(f"{getattr(self, name)} is missing; build it first (scripts/bench handover)")
        return self


def quantile(values, part):
    """Nearest rank."""
    return sorted(values)[max(math.ceil(part * len(values)), 1) - 1]


def summary(values):
    return {name: quantile(values, part) for name, part in (("p50", .5), ("p90", .9), ("p99", .99), ("max", 1))}


# ---- idle programs ----

def switches(pid):
    """Voluntary context switches of each thread of the process: {thread id: (name, count)}."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        threads[int(task.name)] = (fields["Name"], int(fields["voluntary_ctxt_switches"]))
    return threads


def watchers(pids):
    """{(process, thread): switches} of the library's threads."""
    return {(pid, thread): count for pid in pids for thread, (name, count) in switches(pid).items() if name == WATCHER}


def wait_for_line(process, line):
    while (text := process.stdout.readline()) != "":
        if text.strip() == line:
            return
    raise MachineError(f"{process.args[0]} ended with {process.wait()} instead of saying '{line}'")


def attached_jobs(machine):
    done = subprocess.run([str(machine.build.crossover), "status", "--json", "--dir", str(machine.shared_folder)],
                          env=machine.environment(), capture_output=True, text=True, timeout=READY_S, check=False)
    if done.returncode:
        raise MachineError(f"crossover status ended with {done.returncode}: {done.stderr.strip()}")
    return [{client["job"] for client in device["clients"]} for device in json.loads(done.stdout)["devices"]]


def idle_programs(build, programs, seconds):
    """Two jobs on one device: each launches once, waits for the GPU and then for its input."""
    programs.check("guest", "kernels")
    with VirtualMachine(build, ["--devices", 1]) as machine:
        started = []
        try:
            for job in ("A", "B"):
                environment = machine.environment(preload=True, CROSSOVER_JOB=job, SIMGPU_KERNELS=str(programs.kernels))
                started.append(subprocess.Popen([str(programs.guest), "devices"], env=environment, text=True,
                                                stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for process in started:
                wait_for_line(process, "ready")
            pids = [process.pid for process in started]
            if attached_jobs(machine) != [{"A", "B"}]:
                raise MachineError(f"not attached as two jobs of one device: {attached_jobs(machine)}")
            end, settled, last = time.monotonic() + SETTLE_S, False, watchers(pids)
            while time.monotonic() < end and not settled:
                time.sleep(STILL_S)
                now = watchers(pids)
                settled, last = now == last, now
            before, began = watchers(pids), time.monotonic()
            all_before = sum(count for pid in pids for _, count in switches(pid).values())
            time.sleep(seconds)
            after, took = watchers(pids), time.monotonic() - began
            all_after = sum(count for pid in pids for _, count in switches(pid).values())
            if len(before) != len(pids) or before.keys() != after.keys():
                raise MachineError(f"no thread '{WATCHER}' in each of the idle programs")
        finally:
            for process in started:
                process.kill()
                process.communicate()
    return {"programs": len(pids), "seconds": took, "settled": settled,
            "watcher_switches": sum(after.values()) - sum(before.values()),
            "all_switches": all_after - all_before}


# ---- hand-over between programs ----

def programs_handover(build, programs, iterations):
    """Two data-parallel jobs; from the event ring of each device: the release, which is the other's grant, to the first
    launch under that grant."""
    programs.check("events")
    workload = Workload(20, 0.125, iterations)
    with VirtualMachine(build, ["--devices", 2, "--link-gbps", 0.1]) as machine:
        with subprocess.Popen([str(programs.events), str(machine.shared_folder)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as follower:
            try:
                wait_for_line(follower, "ready")
                environment = machine.environment(preload=True)
                with Job("A", build.program, workload, environment, machine.folder) as a, \
                        Job("B", build.program, workload, environment, machine.folder) as b:
                    for job in (a, b):
                        job.wait(JOB_S)
                found = json.loads(follower.communicate(timeout=READY_S)[0])
            finally:
                follower.kill()
    launches = found.pop("launch_us")
    if not launches:
        raise MachineError("no job that slept was given the turn: nothing to measure")
    return {**found, "launches": len(launches), "release_to_launch_us": summary(launches)}


def measure_programs(options):
    build = Build.from_environment().check()
    programs = Programs(build)
    report = {"device": VirtualMachine.device}
    idle = report["idle"] = idle_programs(build, programs, options.program_seconds)
    print(f"\nOn the {VirtualMachine.device}: {idle['programs']} preloaded programs, attached and idle for "
          f"{idle['seconds']:.1f} s: {idle['watcher_switches']} wake-ups of their threads named \"{WATCHER}\""
          + ("" if idle["settled"] else " (never without one before)"), flush=True)
    row = report["handover"] = programs_handover(build, programs, options.iterations)
    times = row["release_to_launch_us"]
    print(f"{row['launches']} hand-overs between two preloaded jobs, from the release by the watcher of one to the end "
          f"of the first launch of the other, which had waited for 1 ms or longer, us:\n  p50 {times['p50']:.1f}, "
          f"p90 {times['p90']:.1f}, p99 {times['p99']:.1f}, max {times['max']:.1f}; "
          f"{row['cut_by_lease']} turns cut by their lease")
    return report


def measure_arbiter(parts, passed_on):
    """handover_probe prints its own tables."""
    probe = Programs(Build.from_environment()).check("probe").probe
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.json"
        done = subprocess.run([str(probe), "--parts", ",".join(parts), "--json", str(file), *passed_on], check=False)
        if done.returncode:
            sys.exit(done.returncode)
        return json.loads(file.read_text(encoding="utf-8"))


def parts_of(text):
    """An argparse type: names of parts with commas."""
    wanted = text.split(",")
    if unknown := [part for part in wanted if part not in PARTS]:
        raise ValueError(f"'{unknown[0]}'")
    return wanted


parts_of.__name__ = f"list of parts (allowed, with commas: {', '.join(PARTS)})"


def main(arguments):
    parser = Parser(prog="scripts/bench handover", description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--parts", type=parts_of, default=list(PARTS), help=f"with commas (default {','.join(PARTS)})")
    parser.add_argument("--program-seconds", type=at_least(0.1, float), default=10, help="idle programs (default 10)")
    parser.add_argument("--iterations", type=at_least(5), default=150, help="of each of the two jobs (default 150)")
    options, passed_on = parser.parse_known_args(arguments)
    if passed_on and options.parts == ["programs"]:
        parser.error(f"{passed_on[0]} is not an option of the part 'programs'")
    report = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    try:
        if arbiter := [part for part in options.parts if part != "programs"]:
            report.update(measure_arbiter(arbiter, passed_on))
        if "programs" in options.parts:
            report["programs"] = measure_programs(options)
    except (JobError, MachineError) as error:
        fail(str(error))
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
