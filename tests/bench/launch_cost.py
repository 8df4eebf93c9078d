# SPDX-License-Identifier: Apache-2.0
"""Benchmark "launch": what the library adds to one kernel launch, to the start of a program, and to memory. The driver is a
stub that does nothing (stub_driver.cpp), so that what is measured is what stands in front of a driver; it is no GPU.

  bare       the program (launch_cost_probe.cpp) without the library
  alone      preloaded, the only job on its device
  one of two preloaded, beside another job that never waits; this one has the turn

Sides are run in turns, and every figure is a median; times are CPU time of the launching thread. Instructions are counted
by callgrind as the difference of two run lengths. It asserts nothing: see launch_cost_test.py."""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIDES = ("bare", "alone", "one of two")
SHORT, LONG = 200, 1200  # launches of the two runs whose difference is counted


class Failed(Exception):
    """A run that did not do what it was started for."""


class Setup:
    """One build folder. Every run gets a folder of shared segments of its own: a process that is stopped by a rule (below)
    cannot leave its segment in order."""

    def __init__(self, build):
        self.bench, self.library = build / "tests" / "bench", build / "lib" / "libcrossover.so"
        self.probe, self.peer = self.bench / "launch_cost_probe", self.bench / "launch_cost_peer"
        libraries = (self.bench / "stub", build / "tests" / "simgpu" / "lib")
        self.base = {name: value for name, value in os.environ.items()
                     if not name.startswith(("CROSSOVER_", "LD_PRELOAD", "STUB_DRIVER_")) and name != "CROSSOVER"}
        self.base |= {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}
        for needed in (self.library, self.probe, self.peer):
            if not needed.exists():
                raise Failed(f"{needed} is not built")

    @contextlib.contextmanager
    def attached_peer(self, folder):
        """The other job, attached. Gives a list that holds what it saw once it has left."""
        seen = []
        peer = subprocess.Popen([self.peer], env=self.base | {"CROSSOVER_DIR": folder}, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        try:
            if peer.stdout.readline().strip() != "ready":
                raise Failed("the other job did not attach")
            yield seen
        finally:
            seen.append(peer.communicate(timeout=60)[0])

    def run(self, side, *arguments, before=(), timeout=300, **environment):
        """The finished process; beside a peer for "one of two", which must have seen this job have the turn."""
        with tempfile.TemporaryDirectory(prefix="launch-cost.") as folder:
            command = [*map(str, before), str(self.probe), *map(str, arguments)]
            preload = {} if side == "bare" else {"LD_PRELOAD": str(self.library)}
            environment = self.base | preload | environment | {"CROSSOVER_DIR": folder}
            with self.attached_peer(folder) if side == "one of two" else contextlib.nullcontext() as seen:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout,
                                      check=False)
        if seen and done.returncode == 0 and json.loads(seen[0])["held_by_other"] == 0:
            raise Failed(f"beside another job the program was never seen to have the turn: {seen[0]}")
        return done

    def measure(self, side, *arguments, **more):
        done = self.run(side, *arguments, **more)
        # Of a system call newer than itself (futex_waitv) valgrind says that it refuses it.
        said = "\n".join(line for line in done.stderr.splitlines() if not re.match(r"--\d+-- ", line))
        if done.returncode != 0 or said.strip():
            raise Failed(f"{side}: exit status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def medians(rows):
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def in_turns(setup, sides, rounds, *arguments, **environment):
    """{side: [result of each round]}, the order of the sides reversed every other round."""
    results = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            results[side].append(setup.measure(side, *arguments, **environment))
    return results


def launch_times(setup, rounds, *arguments, sides=SIDES, **environment):
    """{entry: {side: ns a launch}}."""
    results = in_turns(setup, sides, rounds, *arguments, **environment)
    by_side = {side: medians([result["ns"] for result in runs]) for side, runs in results.items()}
    return {entry: {side: by_side[side][entry] for side in sides} for entry in by_side[sides[0]]}, results


def instructions(setup, side, launches):
    """{entry: instructions of the loop and all it calls}."""
    with tempfile.TemporaryDirectory(prefix="launch-cost.") as folder:
        out = Path(folder) / "callgrind.out"
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--toggle-collect=*measured_loop*",
                    f"--callgrind-out-file={out}"]
        setup.measure(side, "--repeats", 1, "--launches", launches, before=valgrind)
        counts = {}
        for dump in out.parent.glob("callgrind.out.*"):
            text = dump.read_text(encoding="utf-8", errors="replace")
            name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if name and total:
                counts[name.group(1).strip()] = int(total.group(1))
    if not counts:
        raise Failed("callgrind wrote no counts: was the probe built with valgrind's headers?")
    return counts


def instructions_a_launch(setup, side):
    short, long = (instructions(setup, side, launches) for launches in (SHORT, LONG))
    return {entry: (long[entry] - short[entry]) / (LONG - SHORT) for entry in short}


def by_the_rules(setup, side, *arguments):
    """The signal that ended a run in which system calls and writes to shared memory are forbidden; None: it ran through."""
    done = setup.run(side, "--forbid", "--no-runtime", "--launches", 1000, *arguments)
    if done.returncode < 0:
        return signal.Signals(-done.returncode)
    if done.returncode != 0 or done.stdout != "no system call, no write\n":
        raise Failed(f"{side}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    return None


def segment_bytes(setup):
    """Size of the shared memory of one device, and how much of it is in use, while a job is attached."""
    with tempfile.TemporaryDirectory(prefix="launch-cost.") as folder, setup.attached_peer(folder):
        files = [entry.stat() for entry in Path(folder).iterdir()]
    return sum(file.st_size for file in files), sum(file.st_blocks * 512 for file in files)


def start_up(setup, spawns):
    done = subprocess.run([setup.probe, "--startup", setup.library, str(spawns), "/bin/true"], env=setup.base,
                          capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def measure(setup, options):
    report = {"cores": os.cpu_count(), "rounds": options.rounds}
    report["ns"], runs = launch_times(setup, options.rounds)
    report["ns_behind_2us_driver"], _ = launch_times(setup, max(3, options.rounds // 3), "--only", "cuLaunchKernel/link",
                                                     "--launches", 2000, STUB_DRIVER_LAUNCH_NS="2000")
    report["threads"] = []
    for threads in (1, 2, 4, 8, 16):
        for streams in ((), ("--same-stream",), ("--default-stream",)):
            times, _ = launch_times(setup, max(3, options.rounds // 3), "--only", "cuLaunchKernel/link", "--threads", threads,
                                    "--launches", 50000, *streams)
            report["threads"].append({"threads": threads, "streams": streams[0][2:] if streams else "own stream",
                                      **times["cuLaunchKernel/link"]})
    report["rss_added_kib"] = {
        side: statistics.median(run["rss_kib"] for run in runs[side]) - statistics.median(run["rss_kib"] for run in runs["bare"])
        for side in SIDES[1:]}
    report["segment_bytes"], report["segment_used_bytes"] = segment_bytes(setup)
    report["start_up"] = start_up(setup, options.spawns)
    report["alone_breaks"] = str(by_the_rules(setup, "alone") or "nothing")
    report["instructions"] = {side: instructions_a_launch(setup, side) for side in SIDES} if shutil.which("valgrind") else None
    return report


def show(report):
    counts = report["instructions"]
    print(f"{'':<42} {'ns a launch':^29} {'added ns':^17}" + (f" {'added instructions':^19}" if counts else ""))
    print(f"{'entry/how obtained':<42} {'bare':>8} {'alone':>8} {'1 of 2':>8}    {'alone':>7} {'1 of 2':>7}" +
          (f"     {'alone':>7} {'1 of 2':>7}" if counts else ""))
    for entry, ns in report["ns"].items():
        line = f"{entry:<42} " + " ".join(f"{ns[side]:8.1f}" for side in SIDES)
        line += f"    {ns['alone'] - ns['bare']:7.1f} {ns['one of two'] - ns['bare']:7.1f}"
        if counts:
            bare = counts["bare"][entry]
            line += f"     {counts['alone'][entry] - bare:7.0f} {counts['one of two'][entry] - bare:7.0f}"
        print(line)
    if not counts:
        print("valgrind is not installed: instructions were not counted")
    for entry, ns in report["ns_behind_2us_driver"].items():
        print(f"behind a driver that takes 2 us: {entry} " + ", ".join(f"{side} {ns[side]:.0f} ns" for side in SIDES))
    print(f"\ncuLaunchKernel by threads, CPU ns a launch\n{'threads':>7} {'streams':<15} " +
          " ".join(f"{side:>10}" for side in SIDES))
    for row in report["threads"]:
        print(f"{row['threads']:>7} {row['streams']:<15} " + " ".join(f"{row[side]:>10.1f}" for side in SIDES))
    start = report["start_up"]
    print(f"\n/bin/true: bare {start['bare_us']:.0f} us, preloaded {start['preloaded_us']:.0f} us, "
          f"added {start['added_us']:.0f} us, ratio {start['preloaded_us'] / start['bare_us']:.2f}")
    print("resident memory added: " + ", ".join(f"{side} {kib:.0f} KiB" for side, kib in report["rss_added_kib"].items()))
    print(f"shared memory a device: {report['segment_bytes'] / 1024:.0f} KiB, "
          f"of which {report['segment_used_bytes'] / 1024:.0f} KiB in use")
    print(f"alone, with system calls and writes to shared memory forbidden, launches end with: {report['alone_breaks']}")


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench launch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--rounds", type=positive, default=15, help="runs of each side (default 15)")
    parser.add_argument("--spawns", type=positive, default=500, help="starts of /bin/true each way (default 500)")
    options = parser.parse_args(arguments)
    if "CROSSOVER_BUILD" not in os.environ:
        parser.error("CROSSOVER_BUILD must name the build folder: use scripts/bench launch")
    try:
        report = measure(Setup(Path(os.environ["CROSSOVER_BUILD"])), options)
    except (Failed, subprocess.SubprocessError) as error:
        print(f"launch: {error}", file=sys.stderr)
        return 1
    show(report)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
