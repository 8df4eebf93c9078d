# SPDX-License-Identifier: Apache-2.0
"""No clock that somebody can set decides anything: the sources of the arbiter and the library name none. (The command's
files may tell people the time of day.)"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTABLE = re.compile(r"CLOCK_REALTIME|CLOCK_TAI|\bgettimeofday\b|\btime\s*\(|\bsystem_clock\b|pthread_timedjoin_np"
                      r"|\bsem_timedwait\b|pthread_mutex_timedlock|pthread_cond_timedwait|\bwait_until\b|TIMER_ABSTIME")


def offenders(folders):
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
            if "command" in path.relative_to(ROOT).parts:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if SETTABLE.search(line.split("//")[0]):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


class Clock(unittest.TestCase):
    def test_nothing_reads_a_settable_clock(self):
        self.assertGreater(len(list((ROOT / "arbiter").glob("*.cpp"))), 10, sys.path)
        self.assertEqual(offenders(["arbiter", "shim"]), [])


if __name__ == "__main__":
    unittest.main()
