# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: a virtual machine, small preloaded programs that are told what to do, whole jobs
whose losses are compared with a run alone, mounts of the test's own, and a look at who meets whom. No test cases."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))

from job import Job, Workload
from machine import Build, VirtualMachine

LIMIT_S = 100
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 32, 16384, 1 << 18
# Short iterations with windows worth using.
SMALL = Workload(compute_ms=6, comm_mb=0.04, iterations=60)
LONG = 400  # iterations: seconds, of a job to which something is done meanwhile
LINE = "crossover: "

libc = ctypes.CDLL(None, use_errno=True)


def programs():
    """(build, the program places_guest, its kernels), of CROSSOVER_BUILD."""
    build = Build.from_environment().check()
    tests = build.folder / "tests"
    return build, tests / "places" / "places_guest", tests / "simgpu" / "client" / "simgpu_client_test.simgpu.so"


def await_condition(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)
    return found


def status(machine, folder=None):
    """`crossover status --json`: its devices."""
    command = [str(machine.build.crossover), "status", "--json", "--dir", str(folder or machine.shared_folder)]
    done = subprocess.run(command, env=machine.environment(), capture_output=True, text=True, timeout=30, check=False)
    try:
        return json.loads(done.stdout)["devices"]
    except ValueError:
        raise AssertionError(f"crossover status ended with {done.returncode}: {done.stderr.strip()}") from None


def listed_devices(machine):
    """The machine's own list: [(UUID of a GPU, [UUIDs of its MIG instances])]."""
    gpus = []
    for line in (machine.home / "devices").read_text(encoding="utf-8").splitlines():
        uuid = line[line.index("UUID: ") + 6:].rstrip(")")
        if line.startswith("GPU"):
            gpus.append((uuid, []))
        else:
            gpus[-1][1].append(uuid)
    return gpus


class Guest:
    """A running places_guest under the preload, or another command around it; ends with the object."""

    def __init__(self, machine, *words, around=(), preload=True, errors=None, **variables):
        _, program, kernels = programs()
        variables = {"SIMGPU_KERNELS": str(kernels)} | variables
        environment = machine.environment(preload, **variables)
        self.errors = tempfile.TemporaryFile()
        if around:
            # The library is the program's, not the wrapper's.
            library = environment.pop("LD_PRELOAD", "")
            around = [*around, "env", f"LD_PRELOAD={library}"]
        self.process = subprocess.Popen([str(word) for word in [*around, program, *words]], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors if errors is None else errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        return self.process.stdout.readline().decode().rstrip("\n")

    def until(self, wanted):
        """Lines up to and without the wanted one."""
        lines = []
        while (line := self.process.stdout.readline().decode()) != wanted + "\n":
            if not line:
                raise AssertionError(f"its output ended before '{wanted}': {lines}, {self.error_text()}")
            lines.append(line.rstrip("\n"))
        return lines

    def tell(self, text=""):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def finish(self):
        """Ends its input: (exit status, what it said since, what it said on standard error)."""
        self.process.stdin.close()
        out = self.process.stdout.read().decode()
        return self.process.wait(), out, self.error_text()

    def error_text(self):
        self.errors.seek(0)
        return self.errors.read().decode()


class Jobs:
    """A reference run alone and pairs of jobs to compare with it, on one machine; a context manager."""

    def __init__(self, options=("--devices", 2, "--link-gbps", 0.1), workload=SMALL):
        self.build, _, _ = programs()
        self.machine = VirtualMachine(self.build, options)
        self.workload = workload

    def __enter__(self):
        self.machine.__enter__()
        with self.start("alone", preload=False, iterations=LONG) as job:
            self.reference = job.wait(LIMIT_S)
        # Beside another job the program would find another amount of work in a millisecond.
        self.workload = replace(self.workload, burn_per_ms=self.reference.burn_per_ms)
        return self

    def __exit__(self, *_):
        self.machine.__exit__()

    def start(self, name, preload=True, iterations=None, **variables):
        """A job of two ranks; a variable that is None is not set."""
        environment = self.machine.environment(preload and "LD_PRELOAD" not in variables,
                                               **{k: v for k, v in variables.items() if v is not None})
        for variable, value in variables.items():
            if value is None:
                environment.pop(variable, None)
        workload = replace(self.workload, iterations=iterations or self.workload.iterations)
        return Job(name, self.build.program, workload, environment, self.machine.folder)

    def pair(self, meanwhile=None, **variables):
        """Two jobs at once, `meanwhile` called while both run: {name: lines of the library, by rank}. AssertionError
        unless both end well with the losses of the run alone and say nothing else."""
        iterations = LONG if meanwhile else None
        with self.start("A", iterations=iterations, **variables) as a, \
                self.start("B", iterations=iterations, **variables) as b:
            if meanwhile:
                meanwhile(a, b)
            results = {"A": a.wait(LIMIT_S), "B": b.wait(LIMIT_S)}
            # Beside each rank's report of its result.
            said = {job.name: [[line for line in job.log(rank).splitlines()
                                if not line.startswith(f"rank {rank} loss ")]
                               for rank in range(self.workload.ranks)] for job in (a, b)}
        for name, result in results.items():
            if len(result.losses) < 10 or result.losses != self.reference.losses[: len(result.losses)]:
                raise AssertionError(f"job {name}: losses {result.losses} are not {self.reference.losses}")
            for lines in said[name]:
                if strangers := [line for line in lines if not line.startswith(LINE)]:
                    raise AssertionError(f"job {name} says {strangers}")
        return said


def turns(machine, folder=None):
    """Turns granted so far on each device that two jobs share."""
    return [device["turn_count"] for device in status(machine, folder) if len(device["jobs"]) == 2]


def wait_for_turns(jobs, machine, folder=None, count=3):
    """Returns once the two jobs have taken some turns on all of their devices, so both are in the middle of their work."""

    def taken():
        ended = [process.poll() for job in jobs for process in job.processes]
        found = turns(machine, folder)
        if any(code is not None for code in ended):
            said = {job.name: [job.log(rank).splitlines() for rank in range(len(job.processes))] for job in jobs}
            raise AssertionError(f"ranks ended too early, with {ended}; they say {said}; found {found}")
        return len(found) == 2 and min(found) >= count

    await_condition(taken, "turns of two jobs")


def own_mounts():
    """From here on this process and its children have mounts of their own; False where that is not permitted."""
    return libc.unshare(CLONE_NEWNS) == 0 and libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0


def mount_tmpfs(folder, options, flags=0):
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {folder}: {os.strerror(ctypes.get_errno())}")


def make_read_only(folder):
    if libc.mount(None, str(folder).encode(), None, MS_REMOUNT | MS_RDONLY, None) != 0:
        raise OSError(ctypes.get_errno(), f"remount {folder}: {os.strerror(ctypes.get_errno())}")


def fill(folder):
    """Takes all the space of the file system."""
    with open(Path(folder) / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass


__all__ = ["Guest", "Jobs", "VirtualMachine", "await_condition", "fill", "listed_devices", "make_read_only",
           "mount_tmpfs", "own_mounts", "programs", "status", "turns", "wait_for_turns"]
