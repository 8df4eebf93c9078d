# SPDX-License-Identifier: Apache-2.0
"""The judging of windows (scripts/lib/windows.py) on timelines made by hand, whose figures are known; and, with "run
BUILD", one short run of the benchmark that looks at its structure and at what holds on any machine, never at times."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

from windows import (Events, Operation, Verdict, add_up, as_shown, judge, read_events, read_operations, read_shown,
                     true_windows)

MS = 1_000_000
MAIN, COMM = 1, 2
SPAN = (0, 1000 * MS)
LEAST = 300_000


def compute(start, end, stream=MAIN):
    return Operation("compute", stream, round(start * MS), round(end * MS))


def communicate(start, end, stream=COMM):
    return Operation("communicate", stream, round(start * MS), round(end * MS))


def windows(*rows):
    return [(round(start * MS), round(end * MS)) for start, end in rows]


def judged(operations, inferred, span=SPAN, given=()):
    return judge(true_windows(operations), Events(windows(*inferred), [round(t * MS) for t in given]), span, LEAST)


class TrueWindows(unittest.TestCase):
    def check(self, operations, *expected):
        self.assertEqual(true_windows(operations).windows, windows(*expected))

    def test_from_the_end_of_compute_to_the_end_of_the_collective(self):
        self.check([compute(0, 40), communicate(30, 60), compute(60, 100)], (40, 60))

    def test_a_hidden_collective_is_none(self):
        self.check([compute(0, 40), communicate(10, 30)])

    def test_compute_in_between_cuts_it(self):
        self.check([communicate(0, 50), compute(20, 30)], (0, 20), (30, 50))

    def test_collectives_one_after_another_are_one_window(self):
        self.check([communicate(0, 10), communicate(10.001, 20), communicate(15, 25, 3)], (0, 25))

    def test_what_follows_within_a_launch_had_been_submitted(self):
        self.check([communicate(0, 30), compute(0, 10), compute(10.005, 20)], (20, 30))
        self.check([communicate(0, 30), compute(0, 10), compute(10.5, 20)], (10, 10.5), (20, 30))

    def test_packing_kernels_belong_to_their_collectives(self):
        rows = [compute(k, k + 1) for k in range(8)]
        rows += [compute(8, 8.2, COMM), communicate(8.2, 12), compute(12, 12.2, COMM)]
        self.check(rows, (8, 12.2))
        self.assertEqual(len(true_windows(rows).compute), 1)

    def test_a_stream_with_the_main_compute_is_none_of_these(self):
        self.check([compute(0, 10), compute(10, 11), communicate(11, 15, MAIN), compute(15, 20)], (11, 15))

    def test_copies_are_no_compute(self):
        self.check([communicate(0, 10), Operation("copy", MAIN, 2 * MS, 3 * MS)], (0, 10))


class Judging(unittest.TestCase):
    # Two windows of 20 ms.
    TWO = [compute(0, 40), communicate(40, 60), compute(60, 100), communicate(100, 120), compute(120, 130)]

    def test_late_by_a_tenth(self):
        found = judged(self.TWO, [(42, 60), (102, 120)])
        self.assertEqual((found.true_windows, found.true_ns), (2, 40 * MS))
        self.assertEqual((found.precision, found.recall), (1.0, 0.9))
        self.assertEqual(found.latencies_ns, [2 * MS, 2 * MS])
        self.assertEqual((found.missed, found.false_opens), (0, 0))

    def test_open_beyond_the_end_costs_precision(self):
        found = judged(self.TWO, [(40, 65), (100, 120)])
        self.assertEqual(found.recall, 1.0)
        self.assertAlmostEqual(found.precision, 40 / 45)
        self.assertEqual(found.false_opens, 0)

    def test_a_missed_window_counts_with_its_whole_length(self):
        found = judged(self.TWO, [(41, 60)])
        self.assertEqual((found.missed, found.recall), (1, 19 / 40))
        self.assertEqual(found.latencies_ns, [1 * MS, 20 * MS])
        self.assertEqual(found.latency_ns(0.5), 1 * MS)
        self.assertEqual(found.latency_ns(0.99), 20 * MS)

    def test_opening_while_the_own_compute_runs_is_false(self):
        found = judged(self.TWO, [(39.9, 60), (80, 85), (100, 120)])
        self.assertEqual(found.false_opens, 2)
        self.assertEqual(found.latencies_ns, [0, 0])
        self.assertAlmostEqual(found.precision, 40 / 45.1)

    def test_opening_at_the_very_end_of_compute_is_right(self):
        self.assertEqual(judged(self.TWO, [(40, 60)]).false_opens, 0)

    def test_false_opens_in_overlapping_streams(self):
        rows = [compute(0, 10), compute(5, 30, 3), communicate(0, 50)]
        self.assertEqual(judged(rows, [(12, 13), (20, 21), (30, 50)]).false_opens, 2)

    def test_late_is_what_opens_soon_after_a_window_that_had_no_opening(self):
        truth = true_windows(self.TWO)
        for inferred, late_ms, expected in (
                ([(60.4, 70)], 0.5, (0, 1)), ([(60.4, 70)], 0.3, (1, 0)), ([(60.4, 70)], 0, (1, 0)),
                ([(41, 60), (60.4, 70)], 0.5, (1, 0)), ([(60.4, 60.5), (60.45, 61)], 0.5, (1, 1)),
                ([(10, 11), (60.4, 61), (120.4, 121)], 0.5, (1, 2))):
            found = judge(truth, Events(windows(*inferred)), SPAN, LEAST, round(late_ms * MS))
            self.assertEqual((found.false_opens, found.late_opens), expected, (inferred, late_ms))

    def test_short_windows_stand_apart(self):
        rows = [*self.TWO, communicate(130, 130.2), compute(130.2, 140), communicate(140, 140.1), compute(140.1, 150)]
        found = judged(rows, [(40, 60), (100, 120), (130.1, 130.2)], given=[50, 140.05])
        self.assertEqual((found.true_windows, found.short_windows), (2, 2))
        self.assertEqual(found.short_ns, 300_000)
        self.assertEqual((found.given_back, found.short_given), (1, 1))
        self.assertEqual((found.recall, found.precision), (1.0, 1.0), "being right about a short one costs nothing")

    def test_what_is_worth_a_turn_is_what_the_library_went_by(self):
        rows = [*self.TWO, communicate(130, 132), compute(132, 140), communicate(140, 142), compute(142, 150)]
        events = Events(windows((40, 60), (100, 120)), [], [(135 * MS, 3 * MS), (90 * MS, MS)])
        events.least.sort()
        found = judge(true_windows(rows), events, SPAN, LEAST)
        self.assertEqual((found.true_windows, found.short_windows), (3, 1), "2 ms: worth it at 130, too short at 140")
        self.assertEqual(found.missed, 1)
        low = Events(events.windows, [], [(0, 1)])
        self.assertEqual(judge(true_windows(rows), low, SPAN, 2 * MS + 1).short_windows, 2, "the option is the least")

    def test_time_is_cut_to_the_span_and_windows_at_its_edges_are_not_counted(self):
        found = judged(self.TWO, [(40, 60), (101, 120)], span=(50 * MS, 130 * MS))
        self.assertEqual((found.true_windows, found.true_ns), (1, 30 * MS))
        self.assertEqual(found.latencies_ns, [1 * MS])
        self.assertAlmostEqual(found.recall, 29 / 30)

    def test_what_a_standstill_of_the_machine_touches_is_not_judged(self):
        late = windows((49, 60), (101, 121))
        for standstill, expected in ((None, (2, 0)), ((45, 48), (1, 1)), ((38.5, 39.5), (1, 1)), ((20, 30), (2, 0)),
                                     ((119, 120.5), (1, 1)), ((58, 102), (0, 2))):
            events = Events(late, standstills=windows(standstill) if standstill else [])
            found = judge(true_windows(self.TWO), events, SPAN, LEAST)
            self.assertEqual((found.true_windows, found.set_aside), expected, standstill)
        found = judge(true_windows(self.TWO), Events(late, standstills=windows((45, 48))), SPAN, LEAST)
        self.assertEqual(found.latencies_ns, [MS])
        self.assertEqual((found.recall, found.precision), (19 / 20, 19 / 20))
        false = Events(windows((20, 22)), standstills=windows((19, 21)))
        self.assertEqual(judge(true_windows(self.TWO), false, SPAN, LEAST).false_opens, 1, "no excuse for that")

    def test_nothing_inferred_and_nothing_there(self):
        self.assertTrue(math.isnan(judged(self.TWO, []).precision))
        self.assertEqual(judged(self.TWO, []).recall, 0.0)
        self.assertTrue(math.isnan(judged([compute(0, 10)], []).recall))
        self.assertTrue(math.isnan(Verdict().latency_ns(0.5)))

    def test_percentiles(self):
        verdict = Verdict(latencies_ns=list(range(100, 0, -1)))
        self.assertEqual([verdict.latency_ns(part) for part in (0.0, 0.5, 0.99, 1.0)], [1, 50, 99, 100])

    def test_sum(self):
        found = add_up([judged(self.TWO, [(42, 60), (102, 120)]), judged(self.TWO, [(40, 60)])])
        self.assertEqual((found.true_windows, found.missed), (4, 1))
        self.assertEqual(found.recall, 56 / 80)
        self.assertEqual(sorted(found.latencies_ns), [0, 2 * MS, 2 * MS, 20 * MS])


class Reading(unittest.TestCase):
    def event(self, kind, time_ns, pid=7, ordinal=0, value=0):
        return json.dumps({"device": f"GPU-{ordinal}", "ordinal": ordinal, "pid": pid, "time_ns": time_ns, "kind": kind,
                           "value": value, "job": "a"})

    def test_windows_of_each_client(self):
        lines = [self.event("attach", 1), self.event("window_open", 10), self.event("window_open", 15, pid=8),
                 self.event("least_window", 12, pid=8, value=450_000),
                 self.event("window_close", 20), self.event("release", 21), self.event("window_open", 30),
                 self.event("detach", 40), self.event("compute", 50, pid=8)]
        clients, lost = read_events(lines)
        self.assertEqual(clients[0, 7].windows, [(10, 20), (30, 40)])
        self.assertEqual(clients[0, 7].given, [21])
        self.assertEqual(clients[0, 8].least, [(12, 450_000)])
        self.assertEqual(clients[0, 8].windows, [(15, 50)], "one that was open at the end ends with the last event")
        self.assertEqual(lost, [])

    def test_standstills_are_the_machines(self):
        still = json.dumps({"stood_still_ns": 12, "until_ns": 18})
        clients, _ = read_events([self.event("compute", 10), still, self.event("compute", 25, pid=8)])
        self.assertEqual([clients[0, pid].standstills for pid in (7, 8)], [[(12, 18)]] * 2)

    def test_a_loss_is_told_with_its_time(self):
        lines = [self.event("compute", 10), json.dumps({"device": "GPU-0", "lost": 3, "from_ns": 10}),
                 self.event("compute", 25, ordinal=1), self.event("compute", 30)]
        self.assertEqual(read_events(lines)[1], [(10, 30)])

    def test_bad_lines_are_named(self):
        with self.assertRaisesRegex(ValueError, "event 2"):
            read_events([self.event("compute", 10), "{}"])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "truth.jsonl"
            path.write_text('{"device":0}\n', encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "truth.jsonl:1"):
                read_operations(path)


class Shown(unittest.TestCase):
    """Operations as a process could see them."""

    ROWS = [compute(0, 40), communicate(30, 60), compute(60.001, 100)]

    def shown(self, **late):
        rows = [replace(op, number=number) for number, op in enumerate(self.ROWS)]
        return as_shown(rows, {int(number[1:]): round(time * MS) for number, time in late.items()})

    def test_what_was_shown_late_ended_late_and_held_up_what_follows(self):
        rows = self.shown(_1=60.5)
        self.assertEqual(true_windows(rows).windows, windows((40, 60.5)))
        self.assertEqual(rows[2].start, round(60.5 * MS))
        self.assertEqual(true_windows(self.shown(_0=40.3)).windows, windows((40.3, 60)))

    def test_nothing_is_shown_before_its_end_nor_ends_before_it_begins(self):
        self.assertEqual(true_windows(self.shown(_1=59)).windows, windows((40, 60)))
        self.assertEqual([(op.start, op.end) for op in self.shown(_1=101)][2], (101 * MS, 101 * MS))

    def test_what_was_not_told_of_is_as_it_was(self):
        self.assertEqual([(op.start, op.end) for op in self.shown()], [(op.start, op.end) for op in self.ROWS])

    def test_the_log(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shown.1.jsonl"
            path.write_text('{"op":7,"shown_ns":12}\n{"op":9,"shown_ns":14}\n', encoding="utf-8")
            self.assertEqual(read_shown(path), {7: 12, 9: 14})
            path.write_text('{"op":7}\n', encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "shown.1.jsonl:1"):
                read_shown(path)


class Run(unittest.TestCase):
    """One short run on the virtual GPU."""

    build = None

    def test_a_run(self):
        environment = dict(os.environ, CROSSOVER_BUILD=self.build, SIMGPU_BUILD=self.build)
        program = [sys.executable, str(REPOSITORY / "tests" / "bench" / "windows.py")]
        refused = subprocess.run([*program, "--pattern", "none"], env=environment, capture_output=True, text=True,
                                 timeout=100, check=False)
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1), refused.stderr)
        name = "dp_train, 4 overlapped"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            done = subprocess.run([*program, "--pattern", name, "--iterations", "20", "--rounds", "1", "--markdown",
                                   "--json", str(path)], env=environment, capture_output=True, text=True, timeout=250,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            report = json.loads(path.read_text(encoding="utf-8"))
        row = report["patterns"][name]
        self.assertEqual(list(report["patterns"]), [name])
        self.assertTrue(row["losses_identical"])
        for side in ("alone", "in turns"):
            # Two ranks, a window an iteration; those at the edges of the time and split ones apart.
            self.assertGreater(row[side]["windows"], 15, row)
            self.assertEqual(row[side]["false_opens"], 0, row)
            self.assertGreater(row[side]["inferred"], 0, row)
        self.assertGreater(row["solo"]["call_us_bare"], 0)
        self.assertGreater(row["solo"]["call_us_preloaded"], 0)
        self.assertGreater(row["solo"]["calls"], 20)
        self.assertIsNone(row["solo"]["call_added_us"], "one round shows nothing")
        self.assertEqual(done.stdout.count(f"| {name} |"), 4)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        Run.build = sys.argv[2]
        unittest.main(argv=[sys.argv[0], "Run"])
    unittest.main(argv=[*sys.argv, *([] if sys.argv[1:] else ["TrueWindows", "Judging", "Reading", "Shown"])])
