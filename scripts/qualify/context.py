# SPDX-License-Identifier: Apache-2.0
"""What a check is given: the kit, the machines to run on, its figures and the results before it. Starts processes for
checks; no check is here."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from job import free_port
from machine import REPOSITORY, GpuMachine, VirtualMachine

from .runner import OK, Wrong

RUN_LIMIT_S = 120


def one_device(job, rank):
    """Of a rank on the virtual GPU that shares its one device with the job's other rank, as GpuMachine has it."""
    return {"LOCAL_RANK": "0", "NCCL_HOSTID": f"crossover-{job}-{rank}", "NCCL_MAX_CTAS": "2"}


class OneDevice(VirtualMachine):
    """A virtual machine with one GPU, which all ranks share."""

    def __init__(self, kit, sharing, options=(), keep=None):
        super().__init__(kit, ["--devices", 1, "--sharing", sharing, "--link-gbps", 1, *options], keep)

    def rank_environment(self, job, rank):
        return one_device(job, rank)


class OneGpu(GpuMachine):
    """The first GPU, which all ranks share, with the libraries that main() chose."""

    def __init__(self, kit, gpu, sharing, keep=None):
        super().__init__(kit, sharing, 1, gpu, keep)

    def start(self):
        super().start()
        self.variables["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]


def with_variables(machine, variables):
    """The machine, whose jobs get these variables of the environment too."""
    start = machine.start

    def start_with():
        start()
        machine.variables.update(variables)

    machine.start = start_with
    return machine


class Context:
    """One check's surroundings. `gpus` is empty on the virtual GPU; `log` the check's own file; `folder` the report's;
    `users_path` is LD_LIBRARY_PATH as it was, for programs that are not ours."""

    def __init__(self, kit, gpus, python, users_path, quick, folder, log, results):
        self.kit, self.gpus, self.python, self.users_path, self.quick = kit, gpus, python, users_path, quick
        self.folder, self.log = Path(folder), Path(log)
        self.before = {result.name: result for result in results}
        self.figures = None  # set by the runner

    @property
    def virtual(self):
        return not self.gpus

    @property
    def sharing(self):
        """MPS where the check of it said that it is there, or where its command is if that was not run; else time
        slices."""
        mps = self.before.get("calibration.mps")
        if mps is None:
            return "mps" if self.virtual or shutil.which("nvidia-cuda-mps-control") else "timeslice"
        return "mps" if mps.status == OK else "timeslice"

    def has_stream_gate(self):
        """Whether the library can wait in the GPU's queue (docs/gate.md): a kit may be older than that."""
        done = subprocess.run(
            [str(self.kit.crossover), "run", "--help"], capture_output=True, text=True, timeout=30, check=False
        )
        return "CROSSOVER_GATE" in done.stdout or "--gate" in done.stdout

    def machine(self, sharing=None, options=()):
        sharing = sharing or self.sharing
        if self.virtual:
            return OneDevice(self.kit, sharing, options)
        return OneGpu(self.kit, self.gpus[0], sharing)

    def start_probe(
        self, machine, name, *arguments, rank=0, ranks=1, port=0, preload=None, variables=None, job="probe"
    ):
        """A probe's process; read_probe() ends it."""
        environment = machine.environment(**(variables or {}))
        if preload:
            environment["LD_PRELOAD"] = ":".join(map(str, preload))
        environment.update(
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port or free_port()),
        )
        if ranks > 1:
            environment.update(machine.rank_environment(job, rank))
            environment.update(variables or {})
        command = [str(self.kit.probe), "--probe", name, *map(str, arguments)]
        preloaded = environment.get("LD_PRELOAD", "nothing")
        print(f"+ {' '.join(command)} (rank {rank} of {ranks}, preloaded: {preloaded})", flush=True)
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def read_probe(process, name, limit_s=RUN_LIMIT_S):
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Wrong(f"probe {name}: not done after {limit_s} s") from None
        print(errors, end="", flush=True)
        if process.returncode:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            raise Wrong(f"probe {name}: ended with {process.returncode}: {last}")
        return json.loads(out.strip().splitlines()[-1]) if out.strip() else None

    def probe(self, machine, name, *arguments, ranks=1, limit_s=RUN_LIMIT_S, **more):
        """What rank 0 found; Wrong if a rank fails."""
        port = free_port()
        processes = [
            self.start_probe(machine, name, *arguments, rank=rank, ranks=ranks, port=port, **more)
            for rank in range(ranks)
        ]
        try:
            return [self.read_probe(process, name, limit_s) for process in processes][0]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()


def median(values):
    row = sorted(values)
    return row[len(row) // 2] if row else None


SIMGPU_RUN = REPOSITORY / "scripts" / "simgpu-run"
