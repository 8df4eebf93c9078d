# SPDX-License-Identifier: Apache-2.0
"""Programs that come and go leave nothing behind: files, their size, and what a program beside them has open and
mapped."""

import os
import unittest
from pathlib import Path

from place import Guest, VirtualMachine, await_condition, programs, status

RESTARTS = 50


class Restarts(unittest.TestCase):
    def setUp(self):
        self.build, _, _ = programs()

    def found(self, machine, stays):
        """What must not grow."""
        maps = Path(f"/proc/{stays.pid}/maps").read_text(encoding="utf-8")
        return {"files": sorted((path.name, path.stat().st_blocks) for path in machine.shared_folder.iterdir()),
                "descriptors": len(os.listdir(f"/proc/{stays.pid}/fd")),
                "mapped": maps.count(str(machine.shared_folder)) + maps.count("/SYSV"),
                "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith("crossover"))}

    def test_beside_a_program_that_stays(self):
        with VirtualMachine(self.build, ["--devices", 1]) as machine, \
                Guest(machine, "change", "nothing", "-", CROSSOVER_JOB="stays", CROSSOVER_LEASE_MS="20") as stays:
            stays.until("ready")
            stays.tell()
            stays.until("changed")
            reference = None
            for number in range(RESTARTS):
                with Guest(machine, "uuids", CROSSOVER_JOB=f"job{number}") as guest:
                    guest.until("ready")
                    if number % 5 == 4:
                        guest.process.kill()
                    else:
                        self.assertEqual(guest.finish(), (0, "", ""))
                if number % 5 == 3:  # nobody was killed since the last that came
                    await_condition(lambda: len(status(machine)[0]["jobs"]) == 1, "the others to be gone")
                    found = self.found(machine, stays)
                    reference = reference or found
                    self.assertEqual(found, reference, number)
            self.assertEqual(len(reference["files"]), 1)
            self.assertEqual(stays.finish(), (0, "value right\n", ""))
            self.assertEqual(list(machine.shared_folder.iterdir()), [])

    def test_one_after_the_other(self):
        with VirtualMachine(self.build, ["--devices", 1]) as machine:
            for number in range(RESTARTS):
                with Guest(machine, "uuids", CROSSOVER_JOB=f"job{number}") as guest:
                    guest.until("ready")
                    if number % 5 == 4:
                        guest.process.kill()
                        guest.process.wait()
                        self.assertEqual(len(list(machine.shared_folder.iterdir())), 1)
                    else:
                        self.assertEqual(guest.finish(), (0, "", ""))
                        self.assertEqual(list(machine.shared_folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
