# SPDX-License-Identifier: Apache-2.0
"""Processes that may not have something: space in files, descriptors, threads, memory. One line, ungated, right
results; never a signal."""

import os
import unittest

from place import Guest, Jobs, VirtualMachine, programs


class Limits(unittest.TestCase):
    def setUp(self):
        self.build, _, _ = programs()

    def limited(self, limit, *words, **settings):
        """(exit status, output, lines of the library) of a program with a limit, beside one that always computes."""
        with VirtualMachine(self.build, ["--devices", 1]) as machine, \
                Guest(machine, "change", "nothing", "-", CROSSOVER_JOB="peer", CROSSOVER_LEASE_MS="50") as peer:
            peer.until("ready")
            peer.tell()
            with Guest(machine, *words, around=["prlimit", limit], CROSSOVER_JOB="limited",
                       CROSSOVER_DIR=str(machine.folder / "new"), **settings) as guest:
                (machine.folder / "new").mkdir(mode=0o700, exist_ok=True)
                guest.until("ready")
                if words[0] == "change":
                    guest.tell()
                code, out, errors = guest.finish()
            self.assertEqual(peer.finish(), (0, "changed\nvalue right\n", ""))
            self.assertEqual(list((machine.folder / "new").iterdir()), [])
        return code, out, errors.splitlines()

    def test_file_size(self):
        code, out, lines = self.limited("--fsize=65536", "change", "nothing", "-", CROSSOVER_MEMORY="file")
        self.assertEqual((code, out, len(lines)), (0, "changed\nvalue right\n", 1), lines)
        self.assertIn("no space left", lines[0])

    def test_file_size_for_a_locator(self):
        self.assertEqual(self.limited("--fsize=65536", "change", "nothing", "-"), (0, "changed\nvalue right\n", []))

    def test_file_size_of_standard_error(self):
        # Not even the line fits in; that it does not must not end the process.
        self.assertEqual(self.limited("--fsize=0", "change", "nothing", "-"), (0, "changed\nvalue right\n", []))

    def ends_well_with(self, errors):
        with VirtualMachine(self.build, ["--devices", 1]) as machine, \
                Guest(machine, "change", "nothing", "-", errors=errors, CROSSOVER_DIR="/none/of/these") as guest:
            guest.until("ready")
            guest.tell()
            self.assertEqual(guest.finish()[:2], (0, "changed\nvalue right\n"))

    def test_standard_error_that_nobody_reads(self):
        read, write = os.pipe()
        os.set_blocking(write, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(write, b"x" * 4096)
        os.set_blocking(write, True)
        self.ends_well_with(write)
        os.close(write)
        os.close(read)

    def test_standard_error_that_is_closed(self):
        read, write = os.pipe()
        os.close(read)
        self.ends_well_with(write)
        os.close(write)

    def test_open_files(self):
        code, out, lines = self.limited("--nofile=64", "starved", "files", "-")
        self.assertEqual((code, out, len(lines)), (0, "value right\n", 1), lines)
        self.assertIn("ungated", lines[0])

    def test_memory(self):
        # From nothing to plenty: where the program alone works, it works with the library, which does without. Only what
        # the library's own handful of memory takes (not 512 KiB) the driver may lack; it says so to the program (3).
        said = []
        for left_kib in (0, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 1 << 20):
            with VirtualMachine(self.build, ["--devices", 1]) as machine, \
                    Guest(machine, "starved", "memory", left_kib, around=["prlimit", "--core=0"], preload=False) as bare:
                bare.until("ready")
                if bare.finish()[0] != 0:
                    continue
            code, out, lines = self.limited("--core=0", "starved", "memory", left_kib)
            if left_kib >= 512 or code != 3:
                self.assertEqual((code, out), (0, "value right\n"), (left_kib, lines))
            self.assertLessEqual(len(lines), 1, (left_kib, lines))
            said.append(len(lines))
        self.assertEqual(said[-1], 0, "with plenty of memory nothing is missing")
        self.assertIn(1, said, "nothing was ever missing")

    def test_threads_under_whole_jobs(self):
        refuse = self.build.folder / "tests" / "programs" / "libguest_refuse.so"
        with Jobs() as jobs:
            said = jobs.pair(LD_PRELOAD=f"{self.build.library}:{refuse}", GUEST_REFUSE="crossover")
            for ranks in said.values():
                for lines in ranks:
                    self.assertEqual(len(lines), 1, said)
                    self.assertIn("refused by the operating system", lines[0])

    def test_file_size_under_whole_jobs(self):
        with Jobs() as jobs:
            wrapper = jobs.machine.folder / "limited"
            wrapper.write_text(f'#!/bin/sh\nexec prlimit --fsize=131072 "{self.build.program}" "$@"\n',
                               encoding="utf-8")
            wrapper.chmod(0o755)
            jobs.build.program = wrapper
            for ranks in jobs.pair(CROSSOVER_MEMORY="file").values():
                for lines in ranks:
                    self.assertEqual(len(lines), 1)
                    self.assertIn("no space left", lines[0])


if __name__ == "__main__":
    unittest.main()
