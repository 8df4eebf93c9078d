# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark "handover" with tiny counts and checks that its JSON is whole and its counts agree.
It judges no time.
Usage: handover_test.py BUILD [CLASS]..."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
TINY = ["--handovers", "24", "--block", "4", "--asleep-us", "1000", "--seconds", "0.3", "--clients", "1,2,9",
        "--devices", "3", "--idle-seconds", "0.3", "--idle-clients", "2,9", "--program-seconds", "0.5",
        "--iterations", "12"]


def run(*arguments):
    environment = dict(os.environ, CROSSOVER_BUILD=str(BUILD), SIMGPU_BUILD=str(BUILD))
    return subprocess.run([sys.executable, str(HERE / "handover.py"), *arguments], env=environment, text=True,
                          capture_output=True, timeout=240, check=False)


def figures(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        done = run("--json", str(file), *arguments)
        if done.returncode:
            raise AssertionError(f"ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return json.loads(file.read_text(encoding="utf-8"))


def sanitizer():
    """What the build's programs were made with: "address", "thread" or ""."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(r"^CROSSOVER_SANITIZE:\w+=(.*)$", cache, re.MULTILINE).group(1)


class Handover(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.figures = figures(*TINY)

    def check_quantiles(self, row):
        self.assertEqual(list(row), ["p50", "p90", "p99", "max"])
        self.assertGreater(row["p50"], 0)
        self.assertEqual(sorted(row.values()), list(row.values()))

    def test_latency_has_every_sample_and_each_taker_slept(self):
        row = self.figures["latency"]
        self.assertEqual((row["handovers"], row["wakes"], row["block"]), (24, 24, 4))
        self.assertGreaterEqual(row["shortest_sleep_us"], 1000)
        for kind in ("handover_us", "floor_us", "release_us", "wake_us"):
            self.check_quantiles(row[kind])
        for part in ("p50", "p99"):
            self.assertAlmostEqual(row["ratio"][part], row["handover_us"][part] / row["floor_us"][part])
        self.assertEqual(row["block_ratio_p50"]["blocks"], 6)

    def test_everybody_gets_turns_and_the_sums_agree(self):
        rows = self.figures["turns"]
        self.assertEqual([(row["devices"], row["clients"], row["jobs"], row["attachments"]) for row in rows],
                         [(1, 1, 1, 1), (1, 2, 2, 2), (1, 9, 8, 9), (3, 9, 8, 27)])
        for row in rows:
            # They are read one after another while turns go on, so they are compared by their bounds only.
            self.assertGreater(row["client_acquisitions_least"], 0, row)
            self.assertGreater(row["job_turns_least"], 0, row)
            self.assertGreaterEqual(row["job_turns_most"], row["job_turns_least"])
            self.assertGreaterEqual(row["client_acquisitions_most"], row["client_acquisitions_least"])
            self.assertGreaterEqual(row["acquisitions"], row["client_acquisitions_least"] * row["attachments"])
            self.assertLessEqual(row["acquisitions"], row["client_acquisitions_most"] * row["attachments"])
            self.assertGreaterEqual(row["turns"], row["devices"] * row["job_turns_least"])
            self.assertAlmostEqual(row["turns_per_s"], row["turns"] / row["seconds"])

    def test_idle_clients_do_not_wake(self):
        rows = self.figures["idle"]
        self.assertEqual([(row["clients"], row["jobs"]) for row in rows], [(2, 2), (9, 8)])
        if sanitizer() == "thread":
            self.skipTest("the sanitizer's own thread wakes up")
        for row in rows:
            self.assertTrue(row["settled"], row)
            self.assertEqual(row["voluntary_switches"], 0, row)

    def test_programs_idle_and_hand_over(self):
        idle, handover = (self.figures["programs"][part] for part in ("idle", "handover"))
        self.assertGreaterEqual(idle["seconds"], 0.5)
        self.assertEqual(idle["programs"], 2)
        self.assertGreaterEqual(idle["all_switches"], idle["watcher_switches"])
        self.assertGreater(handover["launches"], 0)
        self.assertLessEqual(handover["launches"], handover["handovers"])
        self.assertEqual(handover["events_lost"], 0)
        self.check_quantiles(handover["release_to_launch_us"])


class IdlePrograms(unittest.TestCase):
    def test_the_watchers_of_idle_programs_do_not_wake(self):
        # Longer than any period with which a thread could look around.
        idle = figures("--parts", "programs", "--program-seconds", "3", "--iterations", "12")["programs"]["idle"]
        self.assertEqual(idle["watcher_switches"], 0, idle)


class Manners(unittest.TestCase):
    def refused(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_bad_options_are_one_line(self):
        self.assertIn("latency, turns, idle, programs", self.refused("--parts", "everything"))
        self.assertIn("--handovers", self.refused("--parts", "latency", "--handovers", "1"))
        self.assertIn("--nonsense", self.refused("--parts", "turns", "--nonsense"))
        self.assertIn("--handovers", self.refused("--parts", "programs", "--handovers", "5"))


if __name__ == "__main__":
    if BUILD is None:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    unittest.main()
