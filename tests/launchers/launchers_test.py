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
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

import pods
import vendor
from job import free_port
from machine import Build, VirtualMachine

LIMIT_S = 120
WORK = ["--iterations", "20", "--warmup", "2", "--compute-ms", "4", "--comm-mb", "0.05"]
LONG = ["--iterations", "300", *WORK[2:]]  # time enough to be looked at
MPIRUN = ["--oversubscribe", "--bind-to", "none"]
# Two ranks in one container, no launcher; the arguments are the program's.
TWO_RANKS = """RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 "$@" & first=$!
RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 "$@" && wait $first"""
LOCATOR_BYTES = 64  # a segment's file where the segment itself lies in System V shared memory
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

    def jobs(self, machine, launch, burn=None, task=WORK, meanwhile=None, **more):
        """Runs launch(name) -> command for the given names at once: {name: (losses, output)}. `meanwhile` is called
        while they run."""
        started = {}
        for name in more.pop("names"):
            report = self.scratch / f"{name}.json"
            work = [str(self.build.program), *task, "--json", str(report)]
            work += ["--burn-per-ms", repr(burn)] if burn else []
            started[name] = subprocess.Popen(launch(name, work), env=self.environment(machine, **more),
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        results = {}
        try:
            if meanwhile:
                meanwhile(started)
        except BaseException:
            for process in started.values():
                process.kill()
                process.wait()
                process.stdout.close()
            raise
        for name, process in started.items():
            try:
                out, _ = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
            self.assertEqual(process.returncode, 0, f"{name}: {out}")
            report = json.loads((self.scratch / f"{name}.json").read_text(encoding="utf-8"))
            results[name] = report["losses"], report["burn_per_ms"], out
        return results

    def share(self, launcher, inside=False, machine=None, meanwhile=None, **variables):
        """Two jobs by that launcher, against one without the library. launcher(name, work) -> command; `inside`: it
        brings the library by itself; `meanwhile`: called while the two run, for which they take longer."""
        machine = machine or self.machine()
        task = LONG if meanwhile else WORK
        alone, burn, _ = self.jobs(machine, launcher, names=["alone"], task=task, CROSSOVER="off", **variables)["alone"]
        self.assertGreater(len(alone), 10)
        around = [] if inside else self.run_words("--log", "info")
        both = self.jobs(machine, lambda name, work: [*around, *launcher(name, work)], burn, task, meanwhile,
                         names=["a", "b"], **variables)
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
                                       "--no_local_rank", *work])

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

    def await_turns(self, started, folder, in_file):
        """Returns once two jobs have taken turns on both devices by the segments in that folder; `in_file`: where those
        lie by then."""
        command = [str(self.build.crossover), "status", "--json", "--dir", str(folder)]
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            ended = {name: process.poll() for name, process in started.items() if process.poll() is not None}
            if ended:
                name = next(iter(ended))
                self.fail(f"no turns of two jobs before {ended} ended: {started[name].communicate()[0]}")
            said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
            devices = json.loads(said)["devices"] if said else []
            if len(devices) == 2 and all(len(device["jobs"]) == 2 and min(job["turns"] for job in device["jobs"]) > 2
                                         for device in devices):
                sizes = [path.stat().st_size for path in folder.iterdir()]
                self.assertEqual([size > LOCATOR_BYTES for size in sizes], [in_file] * 2, sizes)
                return
            time.sleep(0.02)
        self.fail("no turns of two jobs")

    def shared_folder(self):
        """As the recipes have it: of the host, in memory."""
        folder = Path(tempfile.mkdtemp(prefix="cxl-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def installed_library(self):
        folder = self.scratch / "installed"
        (folder / "lib").mkdir(parents=True)
        shutil.copy(self.build.library, folder / "lib" / pods.LIBRARY)
        return folder

    def machine_variables(self, machine):
        return {name: machine.variables[name] for name in ("SIMGPU_DIR", "LD_LIBRARY_PATH")} | {"CROSSOVER_LOG": "info"}

    def manifest(self):
        """The pods of the recipe's file, which has to be in order."""
        text = pods.MANIFEST.read_text(encoding="utf-8")
        try:
            found = pods.read(text)
        except ImportError:
            raise unittest.SkipTest("no PyYAML to read the manifest with (Debian: python3-yaml)") from None
        self.assertEqual(pods.faults(found), [])
        self.assertEqual(len(found), 2)
        # Each part of the agreement is looked at: any one spoilt is found.
        for right, wrong in (("mountPath: /crossover}", "mountPath: /other}"), ("/opt/crossover/lib/", "/opt/lib/"),
                             ("name: mps, hostPath", "name: m, hostPath"), ("hostIPC: true", "hostIPC: false"),
                             ("CROSSOVER_JOB, value: b", "CROSSOVER_JOB, value: a"),
                             ("/dev/shm/crossover-shared", "/dev/shm/another"),
                             ("mountPath: /crossover}", "mountPath: /crossover, readOnly: true}")):
            self.assertIn(right, text)
            self.assertTrue(pods.faults(pods.read(text.replace(right, wrong, 1))), f"{right} -> {wrong}")
        self.assertIn("examples/kubernetes.yaml", (REPOSITORY / "docs" / "launchers.md").read_text())
        return found

    def share_pods(self, specs, in_file, **variables):
        """The jobs of two pods."""
        probe = subprocess.run([*pods.namespaces(specs[0]), "true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            raise unittest.SkipTest(f"a pod's namespaces are not permitted here: {probe.stderr.strip()}")
        folders = {"library": self.installed_library(), "crossover": self.shared_folder(), "mps": self.scratch / "mps"}
        folders["mps"].mkdir()
        machine = self.machine()
        added = self.machine_variables(machine) | variables

        def launch(name, work):
            root = Path(tempfile.mkdtemp(dir=self.scratch))
            off = {"CROSSOVER": "off"} if name == "alone" else {}
            return pods.command(specs[name == "b"], folders, root, self.two_ranks(name, work), added | off)

        self.share(launch, inside=True, machine=machine,
                   meanwhile=lambda started: self.await_turns(started, folders["crossover"], in_file))

    def two_ranks(self, name, work):
        return ["sh", "-c", TWO_RANKS, "ranks", *work, "--id-file", str(self.scratch / f"{name}.{free_port()}")]

    def test_kubernetes(self):
        specs = list(self.manifest().values())
        seen = pods.seen_by_kubectl(pods.MANIFEST)
        if seen is None:
            print("kubectl is not installed: only PyYAML has read the manifest")
        else:
            self.assertEqual(seen, [pair for spec in specs for pair in pods.variables(spec).items()])
        self.share_pods(specs, in_file=False)

    def test_kubernetes_without_host_ipc(self):
        self.share_pods([spec | {"hostIPC": False} for spec in self.manifest().values()], in_file=True,
                        CROSSOVER_MEMORY="file")

    def share_apptainer(self, *options):
        """The jobs of two containers, whose image is empty folders for this machine's own to be bound to."""
        apptainer = next(filter(None, map(shutil.which, ("apptainer", "singularity"))), None)
        if apptainer is None:
            raise unittest.SkipTest("neither apptainer nor singularity is installed")
        image = self.scratch / "image"
        binds = [self.build.folder]
        for entry in Path("/").iterdir():
            if entry.is_symlink():
                (image / entry.name).parent.mkdir(exist_ok=True)
                (image / entry.name).symlink_to(os.readlink(entry))
            elif entry.name in ("usr", "bin", "sbin", "lib", "lib64"):
                binds.append(entry)
        for path in ("usr", "etc", "proc", "sys", "dev", "tmp", "var/tmp", "root", "home"):
            (image / path).mkdir(parents=True, exist_ok=True)
        shared = self.shared_folder()
        machine = self.machine()
        binds += [f"{self.installed_library()}:/opt/crossover", shared, self.scratch, machine.folder]
        words = [apptainer, "exec", "--nv", *options, *(word for bind in binds for word in ("--bind", str(bind)))]
        probe = subprocess.run([*words, str(image), "true"], capture_output=True, text=True, timeout=LIMIT_S,
                               check=False)
        if probe.returncode:
            said = (probe.stderr.strip() or "it says nothing").splitlines()[-1]
            raise unittest.SkipTest(f"{apptainer} cannot run a container here: {said}")
        variables = self.machine_variables(machine) | {"CROSSOVER_DIR": str(shared),
                                                       "LD_PRELOAD": f"/opt/crossover/lib/{pods.LIBRARY}"}

        def launch(name, work):
            job = variables | ({"CROSSOVER": "off"} if name == "alone" else {"CROSSOVER_JOB": name})
            env = [word for pair in job.items() for word in ("--env", "=".join(pair))]
            return [*words, *env, str(image), *self.two_ranks(name, work)]

        self.share(launch, inside=True, machine=machine,
                   meanwhile=lambda started: self.await_turns(started, shared, in_file="--containall" in options))

    def test_apptainer(self):
        self.share_apptainer()

    def test_apptainer_contained(self):
        # Which gives IPC namespaces too.
        self.share_apptainer("--containall", "--env", "CROSSOVER_MEMORY=file")


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    for _, reason in program.result.skipped:
        print(f"skipped: {reason}")
    sys.exit(77 if len(program.result.skipped) == program.result.testsRun else 0)
