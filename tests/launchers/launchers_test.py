#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/launchers.md, executed: real launchers start dp_train on the virtual GPU under crossover-run, two
jobs at once, and losses are those of a run without the library. Hosts are network namespaces whose remote shell gives
an empty environment. One case a process; exit status 77 says what is missing here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

import vendor
from job import free_port
from machine import Build, VirtualMachine

LIMIT_S = 120
WORK = ["--iterations", "20", "--warmup", "2", "--compute-ms", "4", "--comm-mb", "0.05"]
MPIRUN = ["--oversubscribe", "--bind-to", "none"]
SLURM_SH = Path(__file__).resolve().parent / "slurm.sh"
HOSTS_SH = Path(__file__).resolve().parent / "hosts.sh"


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            raise unittest.SkipTest(f"{program} is not installed")


class Launchers(unittest.TestCase):
    def setUp(self):
        self.build = Build.from_environment().check()
        self.scratch = Path(tempfile.mkdtemp(prefix="cxl-"))
        self.addCleanup(shutil.rmtree, self.scratch)

    def machine(self):
        machine = VirtualMachine(self.build, ["--devices", 2, "--link-gbps", 0.1])
        machine.__enter__()
        self.addCleanup(machine.__exit__)
        return machine

    def environment(self, machine, **more):
        kept = machine.environment(False, **more)
        # Open MPI refuses root otherwise; a container's root is harmless.
        kept.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return kept

    def run_words(self, *options):
        return [str(self.build.crossover), "run", "--library", str(self.build.library), *options, "--"]

    def jobs(self, machine, launch, burn=None, **more):
        """Runs launch(name) -> command for the given names at once: {name: (losses, output)}."""
        started = {}
        for name in more.pop("names"):
            report = self.scratch / f"{name}.json"
            work = [str(self.build.program), *WORK, "--json", str(report)]
            work += ["--burn-per-ms", repr(burn)] if burn else []
            started[name] = subprocess.Popen(launch(name, work), env=self.environment(machine, **more),
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        results = {}
        for name, process in started.items():
            try:
                out, _ = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
            self.assertEqual(process.returncode, 0, f"{name}: {out}")
            report = json.loads((self.scratch / f"{name}.json").read_text(encoding="utf-8"))
            results[name] = report["losses"], report["burn_per_ms"], out
        return results

    def share(self, launcher, inside=False, **variables):
        """Two jobs by that launcher, against one without the library. launcher(name, work) -> command; `inside`: it
        starts crossover-run by itself."""
        machine = self.machine()
        alone, burn, _ = self.jobs(machine, launcher, names=["alone"], CROSSOVER="off", **variables)["alone"]
        self.assertGreater(len(alone), 10)
        around = [] if inside else self.run_words("--log", "info")
        both = self.jobs(machine, lambda name, work: [*around, *launcher(name, work)], burn, names=["a", "b"],
                         **variables)
        names = set()
        for name, (losses, _, out) in both.items():
            self.assertEqual(losses, alone, name)
            # Both ranks had the library, and were one job.
            found = re.findall(r"crossover: .*\bjob (\S+)", out)
            self.assertGreaterEqual(len(found), 2, out)
            self.assertEqual(len(set(found)), 1, out)
            names |= set(found)
        self.assertEqual(len(names), 2, "two launchers are two jobs")

    def test_mpirun(self):
        need("mpirun")
        self.share(lambda name, work: ["mpirun", *MPIRUN, "-n", "2", *work, "--id-file",
                                       str(self.scratch / f"{name}.{free_port()}")])

    def test_torchrun(self):
        if not vendor.framework_version("torch"):
            raise unittest.SkipTest("PyTorch is not in the cache (scripts/real-programs --download torch_ddp_gloo)")
        torchrun = [str(vendor.framework_python()), "-m", "torch.distributed.run"]
        self.share(lambda name, work: [*torchrun, "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
                                       "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", name, "--no-python",
                                       *work])

    def python_with(self, *modules):
        """A Python that has them: the cache's with PyTorch or this one."""
        pythons = [sys.executable]
        if vendor.framework_version("torch"):
            pythons.insert(0, str(vendor.framework_python()))
        for python in pythons:
            found = subprocess.run([python, "-c", "import " + ", ".join(modules)], check=False, capture_output=True)
            if found.returncode == 0:
                return python
        raise unittest.SkipTest(f"no Python here has {' and '.join(modules)} (pip install {' '.join(modules)})")

    def test_accelerate(self):
        python = self.python_with("torch", "accelerate")
        launch = [python, "-m", "accelerate.commands.launch"]
        self.share(lambda name, work: [*launch, "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                                       "--mixed_precision", "no", "--dynamo_backend", "no",
                                       "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()),
                                       "--no_python", *work])

    def test_deepspeed(self):
        need("deepspeed")
        self.share(lambda name, work: ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "--no_python",
                                       *work])

    def test_ray(self):
        """Workers of two Ray jobs, by the runtime environment of the recipe."""
        python = self.python_with("ray")
        driver = str(Path(__file__).resolve().parent / "ray_job.py")
        self.share(lambda name, work: [python, driver, str(self.build.library), name, str(free_port()), *work],
                   inside=True)

    def on_hosts(self, *command, **more):
        """Runs a command that sees two further hosts, whose names are in $CX_HOSTS; skips where that is forbidden."""
        need("unshare", "nsenter", "ip")
        environment = {**os.environ, "CX_AGENT": str(self.scratch / "agent"), **more}
        environment.pop("LD_PRELOAD", None)
        done = subprocess.run(["unshare", "-Urnm", "bash", str(HOSTS_SH), *map(str, command)], env=environment,
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if "hosts.sh: cannot" in done.stderr or "unshare:" in done.stderr:
            raise unittest.SkipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def said_on_hosts(self, *around):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        out = self.on_hosts("sh", "-c", 'exec "$0" "$@"', *around, "mpirun", "-H", "10.77.0.2,10.77.0.3", "-n", "2",
                            *MPIRUN, "--mca", "plm_rsh_agent", self.scratch / "agent", "--mca", "oob_tcp_if_include",
                            "10.77.0.0/24", "sh", "-c",
                            "echo rank=$OMPI_COMM_WORLD_RANK host=$(hostname) preload=$LD_PRELOAD job=$CROSSOVER_JOB "
                            "lease=$CROSSOVER_LEASE_MS mps=$CUDA_MPS_PIPE_DIRECTORY", **root)
        return sorted(line for line in out.splitlines() if line.startswith("rank="))

    def test_mpirun_on_several_hosts(self):
        need("mpirun")
        bare = self.said_on_hosts()
        self.assertEqual(bare, [f"rank={rank} host=host{rank + 2} preload= job= lease= mps=" for rank in range(2)],
                         "these hosts pass nothing on by themselves")
        said = self.said_on_hosts(*self.run_words("--job", "far", "--lease-ms", "77", "--mps", "off"))
        self.assertEqual(said, [f"rank={rank} host=host{rank + 2} preload={self.build.library} job=far lease=77 mps="
                                for rank in range(2)])

    def slurm(self):
        """A private Slurm for the test's time: its SLURM_CONF."""
        with_daemons = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        for program in ("srun", "slurmctld", "slurmd"):
            if shutil.which(program, path=with_daemons) is None:
                raise unittest.SkipTest(f"{program} is not installed (Debian: slurm-client, slurmctld, slurmd)")
        if os.geteuid() != 0:
            raise unittest.SkipTest("slurmd needs root")
        folder = self.scratch / "slurm"
        slurm = subprocess.Popen(["bash", str(SLURM_SH), str(folder), str(free_port()), str(free_port()), "sh", "-c",
                                  "echo ready; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(slurm.communicate)
        if slurm.stdout.readline() != "ready\n":
            self.fail(f"no Slurm: {slurm.stderr.read()}")
        return str(folder / "slurm.conf")

    def test_srun(self):
        configuration = self.slurm()
        # Nothing is passed on by Slurm itself, so that it is seen who does.
        self.share(lambda name, work: ["srun", "--export=SIMGPU_DIR,LD_LIBRARY_PATH,PATH,HOME", "-n", "2", *work,
                                       "--id-file", str(self.scratch / f"{name}.{free_port()}")],
                   SLURM_CONF=configuration)

    def test_crossover_run_inside_srun(self):
        configuration = self.slurm()
        run = self.run_words("--log", "info")
        self.share(lambda name, work: ["srun", "-n", "2", *run, *work, "--id-file",
                                       str(self.scratch / f"{name}.{free_port()}")], inside=True,
                   SLURM_CONF=configuration)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if len(program.result.skipped) == program.result.testsRun else 0)
