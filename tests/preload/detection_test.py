# SPDX-License-Identifier: Apache-2.0
"""Collectives are seen from each source alone, once from all together, and never at the cost of the user's own profiler.
Whole jobs on the virtual GPU, whose NCCL and driver are told what not to show. No figure here is a time."""

import json
import shutil
import subprocess
import sys
import unittest
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("scripts/lib", "tests/end_to_end")]

import scenarios
from intervals import read_truth
from job import Job, Workload
from machine import Build, VirtualMachine, monotonic_ns

LIMIT_S = 60
SET_UP_NS = 2_000_000_000
OPTIONS = ["--devices", 2, "--link-gbps", 1]
# One tensor an iteration: how several are fused depends on when they are ready.
SHORT = Workload(compute_ms=4, comm_mb=0.25, iterations=30, warmup=3, burn_per_ms=25000.0)
COLLECTIVES = SHORT.iterations + SHORT.warmup + 1  # and one before the first iteration

NO_NAMES = {"SIMGPU_NCCL_KERNELS": "gen9_"}  # kernels of a release that nobody has seen yet
NO_PROFILER = {"NCCL_PROFILER_PLUGIN": "none"}
GROUP, COLL, COLL_API, LAUNCH = 1, 2, 512, 2048  # event types


class Detection(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = Build.from_environment().check()
        cls.folder = cls.build.folder / "tests" / "workloads" / "horovod_like"
        cls.static = cls.folder / "hvd_train"
        cls.simgpu = cls.build.folder / "tests" / "simgpu"
        cls.recorder = cls.simgpu / "nccl" / "recording" / "libnccl-profiler.so"

    def program(self, machine, library):
        """hvd_train with the library of that name."""
        script = machine.folder / "program"
        script.write_text(f'#!/bin/sh\nexec "{self.static}" --library "{library}" "$@"\n', encoding="utf-8")
        script.chmod(0o700)
        return script

    def collectives(self, library="libhvd.so", path=None, **variables):
        """How many collectives the library saw, by device, in a job alone that it only observes."""
        with VirtualMachine(self.build, OPTIONS) as machine:
            output = machine.folder / "trace"
            trace = subprocess.Popen([str(self.build.crossover), "trace", "--dir", str(machine.shared_folder), "--until-end",
                                      "--output", str(output), "--format", "perfetto"], env=machine.environment(),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                environment = machine.environment(preload=True, CROSSOVER="observe", **variables)
                if path:
                    environment["LD_LIBRARY_PATH"] = f"{path}:{environment['LD_LIBRARY_PATH']}"
                program = self.program(machine, self.folder / library)
                # Time for the trace to find the job, which attaches with its first collective, before the iterations.
                with Job("A", program, SHORT, environment, machine.folder, monotonic_ns() + SET_UP_NS) as job:
                    job.wait(LIMIT_S)
                    logs = job.log(0) + job.log(1)
                _, errors = trace.communicate(timeout=LIMIT_S)
            finally:
                trace.kill()
            self.assertEqual(trace.returncode, 0, errors)
            self.assertNotIn("simgpu:", logs)
            found = {}
            for event in json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["traceEvents"]:
                if event.get("cat") == "communicate":
                    found[event["pid"]] = found.get(event["pid"], 0) + 1
            return list(found.values())

    def assert_seen(self, counts, unseen=0):
        """On both devices. Counted twice, there would be twice as many; the first may end before the trace begins, and
        the last ones after the library has left with its process."""
        self.assertEqual(len(counts), 2, counts)
        for count in counts:
            self.assertIn(count, range(COLLECTIVES - unseen - 3, COLLECTIVES - unseen + 1))

    def test_calls_alone(self):
        self.assert_seen(self.collectives("libhvd_shared.so", **NO_NAMES, **NO_PROFILER))
        # Nothing else would have told.
        self.assertEqual(self.collectives("libhvd.so", **NO_NAMES, **NO_PROFILER), [])

    def test_names_alone(self):
        self.assert_seen(self.collectives(**NO_PROFILER))

    def test_names_at_look_up_alone(self):
        path = Path(f"{self.simgpu}/lib-unnamed")
        self.assertTrue((path / "libcuda.so.1").exists())
        self.assert_seen(self.collectives(path=path, **NO_PROFILER))

    def profiler_alone(self, version, unseen):
        self.assert_seen(self.collectives(**NO_NAMES, SIMGPU_NCCL_PROFILER=str(version)), unseen)

    def test_profiler_6_alone(self):
        self.profiler_alone(6, 0)

    def test_profiler_5_alone(self):
        self.profiler_alone(5, 0)

    # Older interfaces tell of a launch afterwards: of the first one too late.
    def test_profiler_4_alone(self):
        self.profiler_alone(4, 1)

    def test_profiler_3_alone(self):
        self.profiler_alone(3, 1)

    def test_profiler_2_alone(self):
        self.profiler_alone(2, 1)

    def test_profiler_1_alone(self):
        self.profiler_alone(1, 1)

    def test_all_sources_count_once(self):
        for version in ("6", "4"):
            self.assert_seen(self.collectives("libhvd_shared.so", SIMGPU_NCCL_PROFILER=version))

    def recorded(self, record):
        return [line.split() for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []

    def with_recorder(self, **more):
        """(what the library saw, what the user's profiler recorded) where only a profiler could tell."""
        with VirtualMachine(self.build, OPTIONS) as machine:  # for its folder
            record = machine.folder / "record"
            counts = self.collectives(**NO_NAMES, RECORDING_PROFILER=str(record), **more)
            return counts, self.recorded(record)

    def test_the_users_profiler_comes_first(self):
        counts, lines = self.with_recorder(path=self.recorder.parent)
        self.assertEqual(counts, [])
        self.assertEqual(sum(line[1:] == ["start", str(COLL)] for line in lines), 2 * COLLECTIVES)

    def test_the_users_profiler_beside_nccl_comes_first(self):
        # As a RUNPATH of $ORIGIN finds it: beside the library that asks.
        with VirtualMachine(self.build, OPTIONS) as machine:
            folder = machine.folder / "beside"
            folder.mkdir()
            shutil.copy(self.folder / "libhvd.so", folder)
            shutil.copy(self.recorder, folder)
            counts, lines = self.with_recorder(library=folder / "libhvd.so")
        self.assertEqual(counts, [])
        self.assertTrue(lines)

    def test_a_profiler_named_by_the_user_comes_first(self):
        counts, lines = self.with_recorder(NCCL_PROFILER_PLUGIN=str(self.recorder))
        self.assertEqual(counts, [])
        self.assertTrue(lines)

    def test_every_interface_of_the_virtual_nccl(self):
        """What the virtual NCCL tells a plug-in, and in which order, for each version; without Crossover."""
        for version in range(1, 7):
            with self.subTest(version=version), VirtualMachine(self.build, OPTIONS) as machine:
                record = machine.folder / "record"
                environment = machine.environment(RECORDING_PROFILER=str(record), NCCL_PROFILER_PLUGIN=str(self.recorder),
                                                  SIMGPU_NCCL_PROFILER=str(version))
                workload = replace(SHORT, ranks=2)
                with Job("A", self.build.program, workload, environment, machine.folder) as job:
                    job.wait(LIMIT_S)
                lines = self.recorded(record)
                self.assertEqual({line[0] for line in lines}, {str(version)})
                ranks = "2" if version > 3 else "0"
                self.assertEqual(sorted(line[2] for line in lines if line[1] == "init"), [ranks, ranks])
                self.assertEqual(sum(line[1] == "finalize" for line in lines), 2)
                starts = [int(line[2]) for line in lines if line[1] == "start"]
                stops = [int(line[2]) for line in lines if line[1] == "stop"]
                self.assertEqual(sorted(starts), sorted(stops))
                expected = [GROUP, COLL] if version < 5 else [GROUP, COLL, COLL_API, LAUNCH]
                self.assertEqual({kind: starts.count(kind) for kind in set(starts)},
                                 {kind: 2 * COLLECTIVES for kind in expected})

    def take_turns(self, program, label):
        """The static job beside another one: losses as alone, and hardly ever both computing."""
        bench = scenarios.Bench(self.build)
        with bench.machine() as machine:
            with Job("alone", self.static, bench.workload, machine.environment(), machine.folder) as job:
                alone = job.wait(LIMIT_S)
        workload = replace(bench.workload, buckets=4)
        with bench.machine() as machine:
            with Job("A", self.static, workload, machine.environment(preload=True), machine.folder) as a:
                with Job("B", program, workload, machine.environment(preload=True), machine.folder) as b:
                    results = [a.wait(LIMIT_S), b.wait(LIMIT_S)]
            machine.stop()
            lanes = read_truth(machine.truth)
        for result in results:
            self.assertEqual(result.losses, alone.losses, label)
            self.assertTrue(bench.same_losses(result), label)
        window = scenarios.joint_window(results)
        self.assertLess(scenarios.both_computing(lanes, results[0].pids, results[1].pids, window), 0.25)

    def test_static_nccl_takes_turns(self):
        self.take_turns(self.build.program, "beside dp_train")

    def test_two_static_nccl_take_turns(self):
        self.take_turns(self.static, "beside its like")


if __name__ == "__main__":
    unittest.main()
