# SPDX-License-Identifier: Apache-2.0
"""The front door's manners: bad options and environment get one line that names them, and exit status 2."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], env=dict(os.environ, **environment), capture_output=True,
                          text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)


class BadInput(unittest.TestCase):
    def refused(self, words, *command, **environment):
        done = run(*command, **environment)
        self.assertEqual(done.returncode, 2, done)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_bootstrap(self):
        self.refused(["--frob", "--check"], SCRIPTS / "bootstrap", "--frob")
        self.refused(["CROSSOVER_CUDA_SOURCE", "cloud", "pypi"], SCRIPTS / "bootstrap", CROSSOVER_CUDA_SOURCE="cloud")

    def test_test(self):
        self.refused(["--frob"], SCRIPTS / "test.sh", "--frob")
        self.refused(["--preset", "fast", "asan"], SCRIPTS / "test.sh", "--preset", "fast")
        self.refused(["-R"], SCRIPTS / "test.sh", "-R")
        self.refused(["-j", "'0'"], SCRIPTS / "test.sh", "-j", "0")
        self.refused(["--build"], SCRIPTS / "test.sh", "--all", "--build", "x")

    def test_bench(self):
        self.refused(["nothing", "solo"], SCRIPTS / "bench", "nothing")
        self.refused(["--list"], SCRIPTS / "bench")
        self.refused(["--json"], SCRIPTS / "bench", "solo", "--json")

    def test_python_benchmarks(self):
        bench = SCRIPTS.parent / "tests" / "bench"
        self.refused(["--pairs", "'1'"], sys.executable, bench / "solo.py", "--pairs", "1")
        self.refused(["--frob"], sys.executable, bench / "end_to_end.py", "--frob")

    def test_demo(self):
        self.refused(["--setting", "fast", "separate"], sys.executable, SCRIPTS / "demo", "--setting", "fast")

    def test_help_and_list(self):
        for command in (["bootstrap", "--help"], ["test.sh", "--help"], ["demo.sh", "--help"], ["bench", "--help"]):
            done = run(SCRIPTS / command[0], command[1])
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("usage", done.stdout)
        listed = run(SCRIPTS / "bench", "--list").stdout
        self.assertIn("simgpu-timing", listed)
        self.assertIn("solo", listed)


if __name__ == "__main__":
    unittest.main()
