# SPDX-License-Identifier: Apache-2.0
"""The gate in the GPU's queues under whole jobs: losses bit for bit those of a job alone, and no compute without the
turn. And one tiny run of the benchmark "run-ahead". No times."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))

import chaos_judge
import run_ahead
import scenarios
from machine import Build, VirtualMachine


class StreamMachine(VirtualMachine):
    """Every preloaded job has the gate in the GPU's queues."""

    def environment(self, preload=False, **added):
        return super().environment(preload, **(dict(CROSSOVER_GATE="stream") if preload else {}), **added)


def as_let_through(subjects, segments, names, compute):
    """`compute` with the time at which the GPU's queue let a kernel go for that of its submission, where it was
    submitted without a turn: the judge asks under which turn a kernel came to the device."""
    owners, found = chaos_judge.histories(subjects, segments, names, compute)
    rows = []
    for device, pid, submitted, start, end in compute:
        subject = owners.of_pid(pid, submitted)
        if subject is not None and device in found:
            before = found[device].turn_before(subject.name, submitted)
            turn = found[device].last_turn(subject.name, start)
            if turn and turn != before and submitted < turn[0] and (before is None or submitted > before[1]):
                if start <= turn[1]:
                    submitted = start
                elif turn[2] == "expire":  # let through by a turn that its lease ended
                    submitted = turn[1]
        rows.append((device, pid, submitted, start, end))
    return rows


class StreamGate(unittest.TestCase):
    def setUp(self):
        self.build = Build.from_environment().check()
        usual, scenarios.VirtualMachine = scenarios.VirtualMachine, StreamMachine
        self.addCleanup(setattr, scenarios, "VirtualMachine", usual)
        judge = chaos_judge.judge
        chaos_judge.judge = lambda subjects, segments, names, compute: judge(
            subjects, segments, names, as_let_through(subjects, segments, names, compute))
        self.addCleanup(setattr, chaos_judge, "judge", judge)

    def in_turns(self, pattern):
        found = scenarios.patterns_in_turns(self.build, pattern)
        for result in found["results"]:
            self.assertEqual(result.losses, found["alone"].losses, pattern)
        self.assertEqual(found["verdict"].broken, [], pattern)
        self.assertGreater(found["verdict"].kernels, 100, pattern)
        return found["passed"]

    def test_ddp_sync(self):
        self.in_turns("ddp_sync")

    def test_ddp_buckets(self):
        self.in_turns("ddp_buckets")

    def test_multi_stream(self):
        self.in_turns("multi_stream")

    def test_fsdp(self):
        self.assertGreater(self.in_turns("fsdp"), 0, "small pieces pass here, too")

    def test_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            with contextlib.redirect_stdout(io.StringIO()) as said:
                status = run_ahead.main(["--json", str(path), "--iterations", "20", "--runs", "1", "--pace-us", "300"])
            self.assertEqual(status, 0, said.getvalue())
            (row,) = json.loads(path.read_text(encoding="utf-8"))["paces"]
        self.assertEqual(set(row["gates"]), {"cpu", "stream"})
        for gate in row["gates"].values():
            self.assertGreater(gate["period_ms"], 0)
            self.assertTrue(gate["losses_identical"])


if __name__ == "__main__":
    unittest.main()
