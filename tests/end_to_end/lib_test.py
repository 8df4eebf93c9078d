# SPDX-License-Identifier: Apache-2.0
"""Unit tests of the scripts' pure parts: interval arithmetic, C/M/E from a truth log, the bound, the demo's figures."""

import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "lib"), str(SCRIPTS / "demo")]

import chart
import report
from intervals import Phases, bound, clip, length, phases, read_truth, subtract, union
from job import JobError, Result, Workload
from runs import Measured, Outcome, Setting


def cells(intervals, size):
    return {point for start, end in intervals for point in range(max(0, start), min(end, size))}


class Intervals(unittest.TestCase):
    def test_against_sets_of_points(self):
        chance = random.Random(7)
        for _ in range(500):
            rows = [[(start := chance.randrange(60), start + chance.randrange(12)) for _ in range(8)] for _ in range(2)]
            left, right = union(rows[0]), union(rows[1])
            self.assertEqual(cells(left, 99), cells(rows[0], 99))
            self.assertEqual(cells(subtract(left, right), 99), cells(rows[0], 99) - cells(rows[1], 99))
            self.assertEqual(length(left), len(cells(left, 99)))
            self.assertTrue(all(a[1] < b[0] for a, b in zip(left, left[1:])))
            self.assertEqual(cells(clip(left, (10, 30)), 99), cells(left, 99) & set(range(10, 30)))


class Truth(unittest.TestCase):
    def write(self, *rows):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "truth.jsonl"
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return path

    def row(self, pid, kind, start_ms, end_ms, device=0):
        return {"device": device, "pid": pid, "stream": 1, "kind": kind, "start_ns": int(start_ms * 1e6),
                "end_ns": int(end_ms * 1e6)}

    def test_phases_per_iteration(self):
        # Two iterations: 40 ms compute; 20 ms communication of which 5 ms beside compute. Another job's pid is left out.
        rows = [self.row(pid, kind, t + s, t + e, device=pid) for pid in (1, 2) for t in (0, 55)
                for kind, s, e in (("compute", 0, 30), ("compute", 30, 40), ("communicate", 35, 55), ("copy", 0, 55))]
        lanes = read_truth(self.write(*rows, self.row(9, "compute", 0, 110)))
        got = phases(lanes, [1, 2], (0, int(110e6)), 2)
        self.assertAlmostEqual(got.compute, 40)
        self.assertAlmostEqual(got.communicate, 20)
        self.assertAlmostEqual(got.exposed, 15)

    def test_processes_on_one_device_keep_it_busy_together(self):
        rows = [self.row(1, "compute", 0, 30), self.row(2, "compute", 10, 40), self.row(1, "communicate", 30, 60),
                self.row(2, "communicate", 40, 60)]
        got = phases(read_truth(self.write(*rows)), [1, 2], (0, int(60e6)), 1)
        self.assertEqual((got.compute, got.communicate, got.exposed), (40, 30, 20))

    def test_missing_process_is_an_error(self):
        lanes = read_truth(self.write(self.row(1, "compute", 0, 1)))
        with self.assertRaisesRegex(ValueError, "knows 1 of the 2 processes"):
            phases(lanes, [1, 2], (0, 10), 1)

    def test_bad_line_is_named(self):
        with self.assertRaisesRegex(ValueError, "truth.jsonl:2"):
            read_truth(self.write(self.row(1, "compute", 0, 1), "{}\n"))


class Bound(unittest.TestCase):
    def test_each_term(self):
        job = Phases(40, 20, 20)
        self.assertEqual(bound([job, job], False), 80)
        self.assertEqual(bound([Phases(10, 50, 50)] * 2, True), 100)
        self.assertEqual(bound([Phases(10, 50, 50)] * 2, False), 60)


class Periods(unittest.TestCase):
    def result(self, start_ms, times_ms):
        result, now = Result("A", [1, 2], ["1"]), start_ms
        for time_ms in times_ms:
            result.starts.append(int(now * 1e6))
            now += time_ms
            result.ends.append(int(now * 1e6))
        return result

    def test_only_whole_iterations_in_the_window_count(self):
        result = self.result(100, [50, 80, 80, 80, 10])
        self.assertAlmostEqual(result.period_ms((int(150e6), int(395e6))), 80)
        with self.assertRaisesRegex(JobError, "only 2 iterations"):
            result.period_ms((int(150e6), int(315e6)))


class Figures(unittest.TestCase):
    def outcome(self):
        outcome = Outcome(Setting("separate", "title", Workload(40, 2.5, 30), False))
        for name in "AB":
            outcome.solo[name], outcome.solo_ms[name] = Phases(40, 20, 20), 60.0
        for mode, _ in report.MODES:
            outcome.modes[mode] = Measured(100.0, [10.0, 10.0], True)
        outcome.modes["crossover"] = Measured(80.0, [12.5, 12.5], False)
        return outcome

    def test_json(self):
        found = report.as_json("virtual GPU", [self.outcome()])["settings"][0]
        self.assertEqual((found["bound_ms"], found["serial_ms"], found["c_ms"]), (80, 120, 40))
        self.assertEqual(found["modes"]["crossover"]["speedup_vs_serial"], 1.5)
        self.assertEqual(found["modes"]["crossover"]["efficiency"], 1.0)
        self.assertEqual(found["modes"]["mps_in_phase"]["speedup_vs_serial"], 1.2)
        self.assertFalse(found["modes"]["crossover"]["losses_identical"])

    def test_table_shows_a_difference_in_losses(self):
        rows = {line[0]: line for line in report.rows(self.outcome())}
        self.assertEqual(rows["together, Crossover"][-1], "NO")
        self.assertEqual(rows["together, MPS, in phase"][-1], "yes")
        self.assertEqual(rows["bound T*"][1], "80.0")

    def test_chart_draws_every_bar(self):
        drawing = chart.chart(report.as_json("virtual GPU", [self.outcome()]))
        for label in chart.LABELS.values():
            self.assertIn(label, drawing)


if __name__ == "__main__":
    unittest.main()
