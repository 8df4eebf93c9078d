# SPDX-License-Identifier: Apache-2.0
"""Folders and files that cannot be used, and files that are damaged, under two whole jobs: both end well with the
losses of a run alone, and each process says one line at most."""

import os
import random
import traceback
import unittest
from pathlib import Path

from place import (Guest, Jobs, await_condition, fill, make_read_only, mount_tmpfs, own_mounts, turns,
                   wait_for_turns)

BOOT_OFFSET = 40  # of Header::boot in include/crossover/layout.hpp
VERSION_OFFSET = 32



def content(path):
    """None while it is not there: a bad file is removed before a good one takes its place."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class Files(unittest.TestCase):
    def setUp(self):
        self.jobs = None

    def tearDown(self):
        if self.jobs:
            self.jobs.__exit__()

    def start(self):
        self.jobs = Jobs().__enter__()
        self.folder = self.jobs.machine.folder / "place"
        self.folder.mkdir(mode=0o700)

    def own_mounts(self):
        if not own_mounts():
            self.skipTest("mounts are not permitted here")

    def refused(self, reason, folder):
        """Every rank of both jobs says one line with the reason, and goes on ungated."""
        said = self.jobs.pair(CROSSOVER_DIR=folder and str(folder))
        for name, ranks in said.items():
            for lines in ranks:
                self.assertEqual(len(lines), 1, (name, lines))
                self.assertIn(reason, lines[0])
                self.assertIn("ungated", lines[0])

    def shared(self, folder, meanwhile=None):
        """The jobs take turns and say nothing."""
        seen = []

        def watch(*jobs):
            wait_for_turns(jobs, self.jobs.machine, folder)
            seen.extend(turns(self.jobs.machine, folder))
            if meanwhile:
                meanwhile(*jobs)

        self.assertEqual(self.jobs.pair(watch, CROSSOVER_DIR=str(folder)), {"A": [[], []], "B": [[], []]})
        self.assertEqual(len(seen), 2)

    # ---- folders

    def test_full_file_system(self):
        self.own_mounts()
        self.start()
        mount_tmpfs(self.folder, "size=256k,mode=0700")
        segments = self.folder / "segments"
        segments.mkdir(mode=0o700)
        fill(self.folder)
        self.refused("no space left", segments)
        self.assertEqual(list(segments.iterdir()), [])

    def test_read_only_file_system(self):
        self.own_mounts()
        self.start()
        mount_tmpfs(self.folder, "size=4m,mode=0700")
        make_read_only(self.folder)
        self.refused("no permission", self.folder)

    def test_default_folder_when_shared_memory_is_full(self):
        self.own_mounts()
        self.start()
        mount_tmpfs("/dev/shm", "size=256k,mode=1777")
        fill("/dev/shm")
        self.refused("no space left", None)
        self.assertEqual([path for path in Path("/dev/shm").rglob("*") if path.suffix], [])

    def test_default_folder_when_shared_memory_is_read_only(self):
        self.own_mounts()
        self.start()
        mount_tmpfs("/dev/shm", "size=4m,mode=1777")
        make_read_only("/dev/shm")
        self.refused("no permission", None)

    def test_default_folder_in_good_order(self):
        self.own_mounts()
        self.start()
        mount_tmpfs("/dev/shm", "size=16m,mode=1777")
        folder = Path(f"/dev/shm/crossover-{os.geteuid()}")
        seen = []

        def meanwhile(*jobs):
            wait_for_turns(jobs, self.jobs.machine, folder)
            seen.append(folder.stat().st_mode & 0o777)

        self.assertEqual(self.jobs.pair(meanwhile, CROSSOVER_DIR=None), {"A": [[], []], "B": [[], []]})
        self.assertEqual(seen, [0o700])
        self.assertEqual(list(folder.iterdir()), [])

    def test_missing_parent(self):
        self.start()
        path = self.folder / "none" / "of" / "these"
        self.refused(f"{path}: its parent folder does not exist", path)

    def test_not_a_folder(self):
        self.start()
        path = self.folder / "file"
        path.write_text("text", encoding="utf-8")
        self.refused("belongs to somebody else or is open to others", path)
        self.assertEqual(path.read_text(encoding="utf-8"), "text")

    def test_symbolic_link(self):
        self.start()
        path = self.folder / "link"
        path.symlink_to(self.folder)
        self.refused("belongs to somebody else or is open to others", path)

    def test_folder_open_to_everybody(self):
        self.start()
        self.folder.chmod(0o777)
        self.refused("belongs to somebody else or is open to others", self.folder)

    def test_folder_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        theirs = Path("/tmp") / f"crossover-theirs-{os.getpid()}"
        theirs.mkdir(mode=0o700)
        self.addCleanup(theirs.rmdir)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresgid(12345, 12345, 12345)
                os.setresuid(12345, 12345, 12345)
                try:
                    self.start()
                except OSError as error:
                    os.write(2, f"{error}\n".encode())
                    code = 77
                else:
                    self.refused("no permission", theirs)
                    code = 0
                    self.tearDown()
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 77:
            self.skipTest("another user cannot reach the build folder")
        self.assertEqual(code, 0)

    # ---- files that are found

    def segment(self):
        """A copy of a good segment file of the first device: (name, bytes)."""
        with Guest(self.jobs.machine, "uuids", CROSSOVER_DIR=str(self.folder), CROSSOVER_JOB="sample",
                   CROSSOVER_MEMORY="file") as guest:
            guest.until("ready")
            path = sorted(self.folder.iterdir())[0]
            found = path.name, path.read_bytes()
            guest.finish()
        self.assertEqual(list(self.folder.iterdir()), [])
        return found

    def plant(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    def replaced(self, change):
        """A file of this user's that is no segment is replaced; who does it says so, and the jobs take turns."""
        self.start()
        name, good = self.segment()
        self.plant(name, change(good))
        said = self.jobs.pair(lambda *jobs: wait_for_turns(jobs, self.jobs.machine, self.folder),
                              CROSSOVER_DIR=str(self.folder))
        told = [line for ranks in said.values() for lines in ranks for line in lines]
        self.assertEqual(len(told), 1, told)
        (line,) = told
        self.assertIn("content is not a segment's", line)
        self.assertIn("replaced", line)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_short_file(self):
        self.replaced(lambda good: good[: len(good) // 2])

    def test_empty_file(self):
        self.replaced(lambda good: b"")

    def test_random_content(self):
        self.replaced(lambda good: random.Random(1).randbytes(len(good)))

    def test_another_version_inside(self):
        # Not ours to judge: that device's ranks say so and go on ungated, nobody is held, nothing is touched.
        self.start()
        name, good = self.segment()
        version = int.from_bytes(good[VERSION_OFFSET : VERSION_OFFSET + 4], "little") + 1
        other = good[:VERSION_OFFSET] + version.to_bytes(4, "little") + good[VERSION_OFFSET + 4 :]
        path = self.plant(name, other)
        said = self.jobs.pair(CROSSOVER_DIR=str(self.folder))
        for ranks in said.values():
            self.assertEqual(sorted(len(lines) for lines in ranks), [0, 1], said)
            self.assertIn("another layout version", "".join(line for lines in ranks for line in lines))
        self.assertEqual(path.read_bytes(), other)

    def test_file_of_another_boot_is_replaced(self):
        self.start()
        name, good = self.segment()
        self.assertNotEqual(good[BOOT_OFFSET : BOOT_OFFSET + 8], bytes(8))
        self.plant(name, good[:BOOT_OFFSET] + b"\1" * 8 + good[BOOT_OFFSET + 8 :])
        self.shared(self.folder)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_files_of_other_layouts_are_left_alone(self):
        self.start()
        name, good = self.segment()
        stem, _, version = name.rpartition(".v")
        others = [self.plant(f"{stem}.v{int(version) + step}", good) for step in (-1, 1)]
        others += [self.plant(stem + ".v", b"text"), self.plant("notes", b"text")]
        before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in others]
        self.shared(self.folder)
        self.assertEqual([(path.read_bytes(), path.stat().st_mtime_ns) for path in others], before)
        self.assertEqual(sorted(self.folder.iterdir()), sorted(others))

    # ---- damage while both run

    def unharmed(self, damage):
        """The file only leads to the segment: whatever is done to it meanwhile, nobody notices, and it is put back."""
        self.start()
        folder = self.folder

        def meanwhile(*jobs):
            wait_for_turns(jobs, self.jobs.machine, folder)
            path = sorted(path for path in folder.iterdir() if path.name.startswith("GPU-"))[0]
            good = path.read_bytes()
            for _ in range(3):
                damage(path)
                await_condition(lambda: content(path) == good, "the old content")
            wait_for_turns(jobs, self.jobs.machine, folder, 20)

        said = self.jobs.pair(meanwhile, CROSSOVER_DIR=str(folder))
        self.assertEqual(said, {"A": [[], []], "B": [[], []]})
        self.shared(folder)
        self.assertEqual(list(folder.iterdir()), [])

    def test_locator_overwritten_while_both_run(self):
        self.unharmed(lambda path: overwrite(path, random.Random(2).randbytes(path.stat().st_size)))

    def test_locator_removed_while_both_run(self):
        self.unharmed(lambda path: path.unlink())

    def test_locator_truncated_while_both_run(self):
        self.unharmed(lambda path: os.truncate(path, 0))

    def test_locator_halved_while_both_run(self):
        self.unharmed(lambda path: os.truncate(path, path.stat().st_size // 2))

    def test_locator_grown_while_both_run(self):
        self.unharmed(lambda path: os.truncate(path, 1 << 20))

    def damaged(self, damage):
        """The file is the segment. Whatever is done to it meanwhile, both jobs end well: they say so, move to a new file and
        take turns again."""
        self.start()
        folder = self.folder

        def meanwhile(*jobs):
            wait_for_turns(jobs, self.jobs.machine, folder)
            path = sorted(path for path in folder.iterdir() if path.name.startswith("GPU-"))[0]
            before = path.stat().st_ino
            with open(path, "rb"):  # the number stays taken
                damage(path)
                self.assertEqual([process.poll() for job in jobs for process in job.processes], [None] * 4,
                                 "ranks ended at the damage, or before")
                await_condition(lambda: path.exists() and path.stat().st_ino != before, "a new file")
                wait_for_turns(jobs, self.jobs.machine, folder)

        said = self.jobs.pair(meanwhile, CROSSOVER_DIR=str(folder), CROSSOVER_MEMORY="file")
        for ranks in said.values():
            for lines in ranks:
                self.assertIn([any(word in line for line in lines) for word in ("is unusable", "gated again")],
                              ([False, False], [True, True]), said)
                self.assertLessEqual(len(lines), 2, said)
            self.assertEqual(sum(len(lines) for lines in ranks), 2, said)
        # Whoever comes next finds order.
        self.shared(folder)
        self.assertEqual(list(folder.iterdir()), [])

    def test_overwritten_while_both_run(self):
        self.damaged(lambda path: overwrite(path, random.Random(2).randbytes(path.stat().st_size)))

    def test_zeroed_while_both_run(self):
        self.damaged(lambda path: overwrite(path, bytes(path.stat().st_size)))

    def test_removed_while_both_run(self):
        self.damaged(lambda path: path.unlink())

    def test_removed_while_both_run_and_a_third_comes(self):
        """Who comes later finds the segment without its name."""
        for said in self.third_after_removal("auto").values():
            self.assertEqual(said, [[], []])

    def test_file_removed_while_both_run_and_a_third_comes(self):
        """Who comes later makes a new file; those who lost theirs miss it and join the newcomer."""
        said = self.third_after_removal("file")
        for ranks in said.values():
            for lines in ranks:
                self.assertEqual([any(word in line for line in lines) for word in ("is unusable", "gated again")],
                                 [True, True], said)
                self.assertEqual(len(lines), 2, said)

    def third_after_removal(self, memory):
        """What the two jobs that run say while the names are removed and a third job comes and goes."""
        self.start()
        third = []

        def meanwhile(*jobs):
            wait_for_turns(jobs, self.jobs.machine, self.folder)
            for path in self.folder.iterdir():
                path.unlink()
            with self.jobs.start("C", iterations=15, CROSSOVER_DIR=str(self.folder), CROSSOVER_MEMORY=memory) as job:
                third.append(job.wait(100).losses)

        said = self.jobs.pair(meanwhile, CROSSOVER_DIR=str(self.folder), CROSSOVER_MEMORY=memory)
        self.assertEqual(third[0], self.jobs.reference.losses[: len(third[0])])
        return said


def overwrite(path, content):
    with open(path, "r+b", buffering=0) as file:
        file.write(content)


if __name__ == "__main__":
    unittest.main()
