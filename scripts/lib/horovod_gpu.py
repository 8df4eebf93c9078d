# SPDX-License-Identifier: Apache-2.0
"""The released Horovod's NCCL operations on the virtual GPU: its own library and PyTorch's, with the virtual runtime
and NCCL in place of NVIDIA's, whose runtime refuses every driver but NVIDIA's. What Horovod then looks up and calls of
Crossover is recorded. Nothing here judges a time."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import vendor
import virtual_runtime
from machine import Build, VirtualMachine
from virtual_runtime import REFUSED, symbols

TESTS = vendor.REPOSITORY / "tests" / "launchers"
PROGRAM = TESTS / "horovod_collectives.py"
CALLED = TESTS / "called.py"
# What a rank prints; one may stand behind another's on a line, for they write at once.
LINE = re.compile(r"rank \d [a-z][a-z0-9 ]* \[\[.*?\]\]")
LINES = 2 * 26
MADE = 26  # collectives
STATIC = ("libnccl_static_sim.a", "libcudart_static_sim.a")
LIMIT_S = 200
# What the program's collectives have to arrive at.
COLLECTIVES = {"ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclReduceScatter", "ncclSend", "ncclRecv"}


class VirtualGpu:
    """`python` has Horovod, whose library is `horovod`. `objects`: where its build linked that; then it is linked anew
    with the virtual NCCL and runtime inside, as Horovod does by default with NVIDIA's. A context manager."""

    def __init__(self, build, python, horovod, objects=None):
        self.build, self.python, self.horovod, self.objects = Build(build), python, horovod, objects
        self.libraries = self.build.folder / "tests" / "simgpu" / "lib"
        self.observer = self.build.folder / "tests" / "recorder" / "lib" / "librecorder_observer.so"
        self.scratch = Path(tempfile.mkdtemp(prefix="cxh-"))
        self.machine = VirtualMachine(self.build, ["--devices", 2])
        self.told = []

    def __enter__(self):
        self.machine.__enter__()
        return self

    def __exit__(self, *_):
        self.machine.__exit__()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def missing(self):
        """What is not here; empty where nothing is."""
        self.runtime = virtual_runtime.stand_ins(self.build, self.horovod)
        if len(self.runtime) < 2:
            return "a Horovod with NCCL operations (a CUDA toolkit when it is built)"
        for path in (*(self.libraries / name for name in STATIC), self.observer):
            if not path.exists():
                return f"{path} (build the targets nccl_static_sim and recorder_observer)"
        return virtual_runtime.missing(self.build, self.horovod)

    def make_rest(self):
        """What PyTorch and Horovod refer to and the virtual runtime and NCCL lack."""
        library = self.scratch / "librest.so"
        virtual_runtime.make_rest(self.runtime, [self.horovod, *virtual_runtime.torch_libraries()], library)
        self.runtime.append(library)

    def link_statically(self):
        """A copy of Horovod whose library has NCCL and the runtime inside and shows no symbol of either."""
        folder = self.objects
        words = (folder / "CMakeFiles" / "pytorch.dir" / "link.txt").read_text(encoding="utf-8").split()
        site = self.scratch / "site"
        package = self.horovod.parents[1]
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns(self.horovod.name))
        words[words.index("-o") + 1] = str(site / package.name / "torch" / self.horovod.name)
        inside = [str(self.libraries / name) for name in STATIC]
        kept = [word for word in words if not re.search(r"libnccl\S*$|libcudart\S*$|^-lcud(art_static|adevrt)$", word)]
        subprocess.run([*kept, *inside], cwd=folder, check=True)
        return str(site)

    def run(self, preload=(), ranks=None, **variables):
        """The lines of two ranks by mpirun, sorted."""
        process = self.start(preload, ranks, **variables)
        return self.lines(process)

    def start(self, preload, ranks=None, **variables):
        # Its packing kernel has no version for the virtual GPU; copies do the same.
        environment = self.machine.environment(False, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                               HOROVOD_BATCH_D2D_MEMCOPIES="0", OMP_NUM_THREADS="1",
                                               PYTHONWARNINGS="ignore", TORCH_CPP_LOG_LEVEL="ERROR",
                                               **self.variables, **variables)
        rank = ["env", f"LD_PRELOAD={self.preload(preload)}", self.python, PROGRAM]
        words = ["mpirun", "--oversubscribe", "--bind-to", "none", *(ranks or ["-n", "2", *rank])]
        return subprocess.Popen([str(word) for word in words], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def preload(self, first):
        return ":".join(map(str, (*first, *self.runtime)))

    def lines(self, process):
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if process.returncode or REFUSED in errors:
            raise RuntimeError(f"exit status {process.returncode}: {(out + errors)[-2000:]}")
        self.said = out + errors
        return sorted(LINE.findall(out))

    def differences(self):
        self.make_rest()
        self.variables = {"PYTHONPATH": self.link_statically()} if self.objects else {}
        found = []
        bare = self.run()
        if len(bare) != LINES or "rank 0 sum 3 [[3.0, 5.0, 6.0]]" not in bare:
            return [f"without the library: {bare}"]
        library = [self.build.library]
        log = self.scratch / "look-ups"
        runs = {"LD_PRELOAD": self.run([self.observer, *library], RECORDER_LOG=str(log), CROSSOVER_LOG="info")}
        if len(re.findall(r"crossover: job \S+ joined device [01]", self.said)) != 2:
            found.append(f"the two ranks did not join their devices: {self.said[-500:]}")
        runs["LD_PRELOAD, beside job b"], runs["LD_PRELOAD, beside job a"] = self.two_jobs(library)
        for name, got in runs.items():
            if got != bare:
                found.append(f"differs with {name}:\n--- bare\n{bare}\n--- with it\n{got}")
        return found + self.look_ups(log) + self.collectives(library) + self.calls(library)

    def collectives(self, library):
        """How many of them the library sees on each device, by a trace of a run that it only observes."""
        output = self.scratch / "trace"
        words = [self.build.crossover, "trace", "--dir", self.machine.shared_folder, "--until-end", "--output", output,
                 "--format", "perfetto"]
        trace = subprocess.Popen([str(word) for word in words], env=self.machine.environment(),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            self.run(library, CROSSOVER="observe")
            errors = trace.communicate(timeout=LIMIT_S)[1]
        finally:
            trace.kill()
        if trace.returncode:
            return [f"crossover trace ended with {trace.returncode}: {errors.strip()}"]
        seen = {}
        for event in json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["traceEvents"]:
            if event.get("cat") == "communicate":
                seen[event["pid"]] = seen.get(event["pid"], 0) + 1
        self.told.append(f"collectives made on each device: {MADE}; "
                         f"seen: {', '.join(map(str, seen.values())) or 'none'}")
        # The first may end before the trace begins, the last after the library has left.
        right = len(seen) == 2 and all(MADE - 3 <= count <= MADE for count in seen.values())
        return [] if right else [self.told[-1]]

    def two_jobs(self, library):
        started = [self.start(library, CROSSOVER_JOB=name) for name in ("a", "b")]
        return [self.lines(process) for process in started]

    def look_ups(self, log):
        """Whether all functions of the driver that Crossover intercepts were Crossover's for who looked them up."""
        ours = vendor.intercepted(self.build.library)
        seen, lost, wrapped = set(), set(), set()
        for line in log.read_text().splitlines():
            kind, *fields = line.split("\t")
            if kind != "look-up":
                continue
            how, symbol, _, _, real, owner, _, caller = fields
            seen.add(symbol)
            wanted = symbol if how == "dlsym" and real != "-" else real
            if wanted in ours:
                if owner == self.build.library.name:
                    wrapped.add(wanted)
                else:
                    lost.add(f"{wanted} ({caller})")
        self.told.append(f"looked up: {len(seen)} functions of the driver, {len(wrapped)} of them intercepted; "
                         f"lost: {', '.join(sorted(lost)) or 'none'}")
        return [f"looked up past the library: {', '.join(sorted(lost))}"] if lost or not wrapped else []

    def calls(self, library):
        """Which of Crossover's functions a rank calls."""
        if shutil.which("gdb") is None:
            self.told.append("what is called was not recorded: gdb is not installed (apt-get install gdb)")
            return []
        functions = sorted(name for name, kind in symbols(self.build.library, "--defined-only")
                           if kind in "TtWi" and re.match(r"_*(cu|cuda|nccl)[A-Z]", name))
        gdb = ["gdb", "-q", "-batch", "-nx", "-iex", "set auto-load off", "-x", CALLED, "--args", self.python, PROGRAM]
        other = ["env", f"LD_PRELOAD={self.preload(library)}", self.python, PROGRAM]
        self.run(ranks=["-n", "1", *gdb, ":", "-n", "1", *other], CALLED_NAMES=" ".join(functions),
                 CALLED_LIBRARY=self.build.library.name, CALLED_PRELOAD=self.preload(library),
                 CALLED_AFTER=self.horovod.name.split(".")[0])
        called = sorted(set(re.findall(r"called (\w+)", self.said)))
        self.told.append(f"called by a rank, of {len(functions)} functions: {', '.join(called) or 'none'}")
        if self.objects:
            # What is hidden is not called past its library, or it would not be hidden.
            return [f"{name} is no static NCCL's" for name in sorted(COLLECTIVES & set(called))]
        return [f"not called: {name}" for name in sorted(COLLECTIVES - set(called))]


def check(build, python, horovod, objects=None):
    """(differences, what there is to tell); differences is None where something is missing, which is told."""
    virtual = VirtualGpu(build, python, horovod, objects)
    if missing := virtual.missing():
        virtual.__exit__()
        return None, [missing]
    try:
        with virtual:
            return virtual.differences(), virtual.told
    except (RuntimeError, subprocess.SubprocessError) as error:
        return [str(error)], virtual.told
