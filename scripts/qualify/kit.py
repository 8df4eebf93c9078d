# SPDX-License-Identifier: Apache-2.0
"""What the checks run: the programs of a build folder, or of one made by prepare(), and where the machine has CUDA's
and NCCL's libraries. No check, no figure."""

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from machine import REPOSITORY, Build, MachineError, gpu_libraries

TARGET = "qualify"
MOST_BYTES = 64 << 20
# Paths are those of a CMake build folder, so that every script finds its own in a prepared one too.
FILES = (
    "lib/libcrossover.so",
    "bin/crossover",
    "tests/workloads/dp_train",
    "tests/workloads/dp_train.simgpu.so",
    "tests/workloads/patterns/patterns",
    "tests/workloads/patterns/patterns.simgpu.so",
    "tests/qualify/qualify_probe",
    "tests/qualify/qualify_probe.simgpu.so",
    "tests/qualify/qualify_interposer.so",
    "tests/recorder/lib/librecorder_observer.so",
    "tests/simgpu/simgpu-server",
    "tests/simgpu/lib/libcuda.so.1",
    "tests/simgpu/lib/libcudart.so.13",
    "tests/simgpu/lib/libnccl.so.2",
    "tests/bench/launch_cost_probe",
    "tests/bench/launch_cost_peer",
    "tests/bench/stub/libcuda.so.1",
)
CARRIED = "lib/carried"  # libraries that the programs need and a bare machine lacks
# What every machine with a C++ program has, and what the machine itself must bring.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s|cudart|nccl|cuda))\.so")


class Kit(Build):
    """A Build with all that the checks need."""

    def __init__(self, folder):
        super().__init__(folder)
        self.probe = self.folder / "tests" / "qualify" / "qualify_probe"
        self.interposer = self.folder / "tests" / "qualify" / "qualify_interposer.so"
        self.observer = self.folder / "tests" / "recorder" / "lib" / "librecorder_observer.so"
        self.patterns = self.folder / "tests" / "workloads" / "patterns" / "patterns"

    def missing(self):
        return [name for name in FILES if not (self.folder / name).exists()]

    def check(self):
        if missing := self.missing():
            raise MachineError(
                f"{self.folder} lacks {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
            )
        return self


def needed(path):
    """{library name: path, or None where the loader finds none} of a program."""
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"\s*(\S+) => (\S+|not found)", line):
            found[match[1]] = None if match[2] == "not found" or match[2] == "not" else match[2]
    return found


def cannot_start(kit, virtual):
    """Why the kit's programs would not start on this machine, or None."""
    sim = str(kit.folder / "tests" / "simgpu" / "lib")
    path = ":".join(filter(None, [sim if virtual else "", os.environ.get("LD_LIBRARY_PATH", "")]))
    environment = dict(os.environ, LD_LIBRARY_PATH=path)
    for program in (kit.program, kit.crossover, kit.probe):
        done = subprocess.run(["ldd", str(program)], env=environment, capture_output=True, text=True, check=False)
        for line in (done.stdout + done.stderr).splitlines():
            if "not found" in line:
                return f"{program.name}: {line.strip()}"
    return None


def find_library(name, folders):
    return next((folder for folder in folders if folder and (Path(folder) / name).exists()), None)


def python_folders(python):
    """Where the wheels of an interpreter keep NVIDIA's libraries."""
    text = "import sys; print('\\n'.join(sys.path))"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)
    return [
        folder for place in done.stdout.splitlines() if place for folder in sorted(glob.glob(f"{place}/nvidia/*/lib"))
    ]


def set_library_path(kit, python, virtual, first=None):
    """Puts the folders of what the kit carries, of the CUDA runtime and of NCCL into LD_LIBRARY_PATH of our own
    programs. Returns where those two were found."""
    folders = [str(first.resolve())] if first else []
    folders += [str(kit.folder / CARRIED)] if (kit.folder / CARRIED).is_dir() else []
    chosen = {}
    if not virtual:
        system = [
            *folders,
            *gpu_libraries().split(":"),
            "/usr/local/cuda/lib64",
            "/usr/local/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/lib/x86_64-linux-gnu",
            "/usr/lib64",
            *sorted(glob.glob("/usr/local/cuda*/lib*"), reverse=True),
            *python_folders(python),
        ]
        for name in ("libcudart.so.13", "libnccl.so.2"):
            chosen[name] = folder = find_library(name, system)
            if folder and folder not in folders and not folder.startswith(("/usr/lib", "/lib")):
                folders.append(folder)
    previous = os.environ.get("LD_LIBRARY_PATH", "")
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [*folders, previous]))
    return chosen


def build(folder):
    """Configures and builds what is needed; MachineError with the log's place."""
    log = folder / "qualify.log"
    folder.mkdir(parents=True, exist_ok=True)
    commands = (
        []
        if (folder / "CMakeCache.txt").exists()
        else [["cmake", "-S", str(REPOSITORY), "-B", str(folder), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]]
    )
    commands.append(["cmake", "--build", str(folder), "--parallel", str(os.cpu_count()), "--target", TARGET])
    with open(log, "w", encoding="utf-8") as out:
        for command in commands:
            try:
                done = subprocess.run(
                    command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
                )
            except OSError as error:
                raise MachineError(f"{command[0]}: {error.strerror}; give --build a folder made by --prepare") from None
            if done.returncode:
                raise MachineError(
                    f"building in {folder} failed, see {log}; scripts/bootstrap gets what it needs, or give "
                    "--build a folder that --prepare made on another machine"
                )


def obtain(option, say):
    """The kit of --build, else that of $CROSSOVER_BUILD or build/dev where complete, else built in build/qualify."""
    if option:
        return Kit(option).check()
    kit = Kit(os.environ.get("CROSSOVER_BUILD", REPOSITORY / "build" / "dev"))
    if not kit.missing():
        return kit
    kit = Kit(REPOSITORY / "build" / "qualify")
    say(f"building what is needed in {kit.folder}")
    build(kit.folder)
    return kit.check()


def prepare(kit, target):
    """Copies what the checks need to a new folder that depends on nothing of the build; bytes of it."""
    target = Path(target)
    if target.exists() and any(target.iterdir()):
        raise MachineError(f"--prepare {target}: not empty")
    for name in FILES:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile((kit.folder / name).resolve(), copy)
        shutil.copymode((kit.folder / name).resolve(), copy)
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
        for library, path in needed(copy).items():
            if not SYSTEM.match(library):
                if path is None:
                    raise MachineError(f"{name} needs {library}, which is not on this machine")
                (target / CARRIED).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(path).resolve(), target / CARRIED / library)
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    if total > MOST_BYTES:
        raise MachineError(f"{target} takes {total >> 20} MiB; at most {MOST_BYTES >> 20} can be carried")
    return total


def first_gpu(visible):
    """What CUDA_VISIBLE_DEVICES is to be: one GPU, by its UUID, for under MPS numbers mean something else to a client
    than to the daemon. `visible`: what the user has set, or None."""
    first = (visible or "0").split(",")[0].strip()
    if not first.isdigit():
        return first
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = [line.strip() for line in done.stdout.splitlines() if re.fullmatch(r"GPU-[0-9a-fA-F-]+", line.strip())]
    return found[int(first)] if int(first) < len(found) else first


def describe_machine():
    """What the report says of the machine; nothing that names it or its paths."""
    facts = {
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
        "load": round(os.getloadavg()[0], 2),
        "kernel": os.uname().release,
    }
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,compute_mode,mig.mode.current"
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        facts["gpus"] = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return facts
