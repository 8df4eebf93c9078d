# SPDX-License-Identifier: Apache-2.0
"""Two virtual machines of two devices each, joined by a network (scripts/simgpu-run --nodes): two jobs of four ranks
over both take turns on every device, and each job's losses are those of a run alone without the library. Under mpirun,
too. No times."""

import json
import os
import shutil
import subprocess
import sys
import unittest
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

from job import Job, Workload
from machine import Build, VirtualMachine, monotonic_ns, namespaces, node_environment, node_prefix
from recording import grants, recorded_events
from windows import read_events

NODES, DEVICES = 2, 2
RANKS = NODES * DEVICES
OPTIONS = ["--devices", RANKS, "--nodes", NODES, "--node-link-gbps", 0.1]
WORKLOAD = Workload(compute_ms=20, comm_mb=0.15, iterations=20, ranks=RANKS)
LIMIT_S = 120


class Nodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = Build.from_environment().check()

    def start(self, stack, machine, name, workload, preload, start_at=None):
        def environment(_, rank):
            return {"LOCAL_RANK": str(rank % DEVICES), **node_environment(machine, rank // DEVICES, DEVICES)}

        variables = machine.environment(preload, CROSSOVER_JOB=name)
        return stack.enter_context(Job(name, self.build.program, workload, variables, machine.folder, start_at,
                                       environment, lambda _, rank: node_prefix(rank // DEVICES)))

    def alone(self):
        with VirtualMachine(self.build, OPTIONS) as machine, ExitStack() as stack:
            return self.start(stack, machine, "alone", WORKLOAD, False).wait(LIMIT_S)

    def test_two_jobs_over_two_machines_cross_over(self):
        alone = self.alone()
        workload = replace(WORKLOAD, burn_per_ms=alone.burn_per_ms)
        with VirtualMachine(self.build, OPTIONS) as machine, ExitStack() as stack:
            folders = [node_environment(machine, node, DEVICES)["CROSSOVER_DIR"] for node in range(NODES)]
            with ExitStack() as recorders:
                recorded = [recorders.enter_context(
                    recorded_events(self.build, folder, machine.folder / f"events{node}"))
                    for node, folder in enumerate(folders)]
                start_at = monotonic_ns() + 3_000_000_000
                jobs = [self.start(stack, machine, name, workload, True, start_at) for name in ("A", "B")]
                results = [job.wait(LIMIT_S) for job in jobs]
        for lines in recorded:
            read_events(lines)  # whole
        counts = {(node, *key): count for node, lines in enumerate(recorded) for key, count in grants(lines).items()}
        for result in results:
            self.assertEqual(result.losses, alone.losses)
        # On each device of each machine the same two jobs had turns, by the keys that they go by.
        jobs = {job for _, _, job in counts}
        self.assertEqual(len(jobs), 2, counts)
        expected = {(node, device, job) for node in range(NODES) for device in range(DEVICES) for job in jobs}
        self.assertEqual({key for key, count in counts.items() if count >= 5}, expected, counts)

    def test_a_machine_sees_its_own_devices_name_and_memory(self):
        script = 'echo "$NODE_RANK/$NNODES $(hostname) $CUDA_VISIBLE_DEVICES $(ls /dev/shm | wc -l)"; touch /dev/shm/x'
        command = [REPOSITORY / "scripts" / "simgpu-run", *map(str, OPTIONS), "--", "bash", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                              env=dict(os.environ, SIMGPU_BUILD=str(self.build.folder)))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual([line.split()[0] for line in lines], ["0/2", "1/2"])
        self.assertEqual([line.split()[2] for line in lines], ["0,1", "2,3"])
        if namespaces():
            self.assertEqual([line.split()[1] for line in lines], ["node0", "node1"])
            self.assertEqual([line.split()[3] for line in lines], ["0", "0"])

    def test_exit_status_and_bad_numbers(self):
        run = REPOSITORY / "scripts" / "simgpu-run"
        environment = dict(os.environ, SIMGPU_BUILD=str(self.build.folder))
        for options, status, text in ((OPTIONS, 7, ""),
                                      (["--devices", 3, "--nodes", 2], 2, "--nodes: 2 does not divide"),
                                      (["--node", 1], 2, "--node 1: needs --join")):
            command = [run, *map(str, options), "--", "bash", "-c", "exit $((NODE_RANK ? 7 : 0))"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(text, done.stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun here")
    def test_under_mpirun(self):
        alone = self.alone()
        workload = replace(WORKLOAD, burn_per_ms=alone.burn_per_ms)
        with VirtualMachine(self.build, OPTIONS) as machine:
            environment = machine.environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            for name in ("CROSSOVER_DIR", "LD_PRELOAD"):
                environment.pop(name, None)
            started = []
            for name in ("A", "B"):
                report = machine.folder / f"{name}.json"
                program = ["env", f"LD_PRELOAD={self.build.library}", f"CROSSOVER_JOB={name}", "bash", "-c",
                           f'LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % {DEVICES})) exec "$@"', "rank",
                           str(self.build.program), *workload.arguments(), "--json", str(report)]
                words = ["mpirun", "--oversubscribe", "--bind-to", "none"]
                for node in range(NODES):
                    run = [str(REPOSITORY / "scripts" / "simgpu-run"), "--join", str(machine.home), "--node", str(node)]
                    words += [*([":"] if node else []), "-np", str(DEVICES), *run, "--", *program]
                started.append((report, subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL,
                                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
            for report, process in started:
                try:
                    said, _ = process.communicate(timeout=LIMIT_S)
                finally:
                    process.kill()
                self.assertEqual(process.returncode, 0, said)
                self.assertEqual(json.loads(report.read_text(encoding="utf-8"))["losses"], alone.losses)


if __name__ == "__main__":
    unittest.main()
