# SPDX-License-Identifier: Apache-2.0
"""What jobs run on: a virtual GPU machine of scripts/simgpu-run, or the GPUs that are there. Gives the environment of a
job and takes everything down again. Nothing here knows a workload, a mode of the demo or a figure."""

import argparse
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import clean_environment

REPOSITORY = Path(__file__).resolve().parents[2]


class MachineError(RuntimeError):
    """A machine that could not be had; the text says why."""


class Build:
    """Where the programs are; MachineError names the first that is missing."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.library = self.folder / "lib" / "libcrossover.so"
        self.crossover = self.folder / "bin" / "crossover"
        self.program = self.folder / "tests" / "workloads" / "dp_train"

    @classmethod
    def from_environment(cls):
        return cls(os.environ.get("CROSSOVER_BUILD", REPOSITORY / "build" / "dev"))

    def check(self):
        for path in (self.library, self.crossover, self.program):
            if not path.exists():
                raise MachineError(f"{path} is missing; build it first (scripts/test.sh, or scripts/demo.sh)")
        return self


class Machine:
    """A context manager; `folder` is private to the machine and gone afterwards. `keep` names a folder that gets the
    logs and truth log then. (The machine itself lives under a short path: a socket's path has room for 107 bytes.)"""

    device = ""
    virtual = False

    def __init__(self, build, keep=None):
        self.build = build
        self.keep = keep
        self.folder = Path(tempfile.mkdtemp(prefix="crossover-"))
        self.variables = {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        if self.keep:
            shutil.rmtree(self.keep, ignore_errors=True)
            for found in sorted(self.folder.rglob("*")):
                if found.suffix in (".log", ".json", ".jsonl") and found.is_file():
                    target = Path(self.keep) / found.relative_to(self.folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(found, target)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        raise NotImplementedError

    def stop(self):
        raise NotImplementedError

    def environment(self, preload=False, **added):
        """For one job; preload adds the library and nothing else."""
        variables = dict(self.variables, **added)
        if preload:
            variables["LD_PRELOAD"] = str(self.build.library)
        return clean_environment(**variables)

    def rank_environment(self, job, rank):
        return {}

    @property
    def shared_folder(self):
        return Path(self.variables["CROSSOVER_DIR"])


class VirtualMachine(Machine):
    """`options` are scripts/simgpu-run's."""

    device = "virtual GPU"
    virtual = True

    def __init__(self, build, options, keep=None):
        super().__init__(build, keep)
        self.options = [str(option) for option in options]
        self.run = REPOSITORY / "scripts" / "simgpu-run"
        self.home = self.folder / "machine"

    def start(self):
        command = [str(self.run), "--background", "--print-env", "--dir", str(self.home), *self.options]
        # To a file: a server that stays would keep a pipe open.
        with open(self.folder / "environment", "w+", encoding="utf-8") as out:
            done = subprocess.run(command, env=clean_environment(SIMGPU_BUILD=str(self.build.folder)), stdout=out,
                                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=60, check=False)
            out.seek(0)
            for line in out:
                words = shlex.split(line)
                if len(words) == 2 and words[0] == "export" and "=" in words[1]:
                    name, _, value = words[1].partition("=")
                    self.variables[name] = value
        if done.returncode or "SIMGPU_DIR" not in self.variables:
            raise MachineError(f"simgpu-run ended with {done.returncode}: {done.stderr.strip()}")
        self.variables.setdefault("CROSSOVER_DIR", str(self.home / "crossover"))

    def stop(self):
        if self.home.exists():
            subprocess.run([str(self.run), "--stop", str(self.home)], stdin=subprocess.DEVNULL, timeout=60, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def truth(self):
        """The truth log, complete once the machine has stopped."""
        return self.home / "truth.jsonl"


def node_environment(machine, node, devices):
    """What a rank on virtual machine `node` of several gets: that machine's `devices` devices, its folder of turns and
    its name for NCCL. As scripts/simgpu-run --node has it."""
    folder = machine.home / f"node{node}" / "crossover"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mine = range(node * devices, (node + 1) * devices)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, mine)), "CROSSOVER_DIR": str(folder),
            "NCCL_HOSTID": f"node{node}"}


@functools.lru_cache(maxsize=1)
def namespaces():
    """Words that give a command a host name (the next argument) and /dev/shm of its own in the same process, or none where
    the system does not allow that. No IPC namespace: each call would get one, but the jobs of a machine share one."""
    script = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && hostname "$0" && exec "$@"'
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *user, "--mount", "--uts", "bash", "-c", script]
    try:
        tried = subprocess.run([*words, "node", "true"], timeout=30, check=False, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return ()
    return tuple(words) if tried.returncode == 0 else ()


def node_prefix(node):
    """Words in front of a command on virtual machine `node` of several."""
    return [*namespaces(), f"node{node}"] if namespaces() else []


class GpuMachine(Machine):
    """Real GPUs; sharing "mps" starts a private MPS daemon, "timeslice" keeps out of anybody's."""

    def __init__(self, build, sharing, devices, device, keep=None):
        super().__init__(build, keep)
        self.sharing, self.devices, self.device = sharing, devices, device

    def start(self):
        pipe = self.folder / "mps"
        pipe.mkdir(exist_ok=True)
        (self.folder / "crossover").mkdir(mode=0o700, exist_ok=True)
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe),
                          "CROSSOVER_DIR": str(self.folder / "crossover"), "LD_LIBRARY_PATH": gpu_libraries()}
        if self.sharing == "mps":
            done = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment(), capture_output=True,
                                  text=True, timeout=60, check=False)
            if done.returncode:
                raise MachineError(f"nvidia-cuda-mps-control -d failed: {(done.stderr or done.stdout).strip()}")

    def stop(self):
        if self.sharing == "mps" and self.variables:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=self.environment(), text=True, timeout=60,
                           check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rank_environment(self, job, rank):
        # Sockets over loopback give communication a length worth hiding; a host id for each rank is what lets NCCL take
        # two ranks of a job on one GPU.
        own = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
               "NCCL_SHM_DISABLE": "1", "NCCL_MAX_CTAS": "2", "NCCL_CUMEM_ENABLE": "0"}
        if self.devices == 1:
            own |= {"LOCAL_RANK": "0", "NCCL_HOSTID": f"crossover-{job}-{rank}"}
        return own


def gpu_libraries():
    """Folders of the toolkit's own libraries, before whatever the user has."""
    note = REPOSITORY / "build" / "cuda.root"
    root = Path(note.read_text(encoding="utf-8").strip()) if note.exists() else Path("/usr/local/cuda")
    return ":".join(filter(None, [str(root / "lib64"), os.environ.get("LD_LIBRARY_PATH")]))


def find_gpus():
    """Names of the GPUs that are there; empty without one."""
    if not shutil.which("nvidia-smi"):
        return []
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=60, check=False)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def monotonic_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def fail(text, status=1):
    name = Path(sys.argv[0]).name
    print(f"{Path(sys.argv[0]).parent.name if name == '__main__.py' else name}: {text}", file=sys.stderr)
    sys.exit(status)


class Parser(argparse.ArgumentParser):
    """Bad options: one line, exit status 2."""

    def error(self, message):
        fail(f"{message}; see --help", 2)


def at_least(least, kind=int):
    """An argparse type: a number no smaller than `least`."""

    def parse(word):
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not value >= least:
            raise argparse.ArgumentTypeError(f"'{word}' is not a number from {least}")
        return value

    return parse
