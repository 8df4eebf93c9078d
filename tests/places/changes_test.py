# SPDX-License-Identifier: Apache-2.0
"""Processes that change what they are after they have joined: user, root folder, program, threads, a child that
outlives them. They work on or end typed, and whoever shares the device is held by none of it."""

import os
import signal
import tempfile
import unittest

from place import Guest, VirtualMachine, await_condition, programs, status


class Changes(unittest.TestCase):
    def setUp(self):
        self.build, _, _ = programs()
        self.machine = VirtualMachine(self.build, ["--devices", 1]).__enter__()
        self.addCleanup(self.machine.__exit__)
        self.peer = Guest(self.machine, "change", "nothing", "-", CROSSOVER_JOB="peer", CROSSOVER_LEASE_MS="200")
        self.addCleanup(self.peer.__exit__)
        self.peer.until("ready")
        self.peer.tell()
        self.peer.until("changed")

    def job(self, name):
        return next((job for device in status(self.machine) for job in device["jobs"] if job["name"] == name), None)

    def await_turns(self, name, count):
        """So many further turns of a job."""
        before = self.job(name)["turns"]
        await_condition(lambda: self.job(name)["turns"] >= before + count, f"{count} turns of {name}")

    def end_peer(self):
        self.assertEqual(self.peer.finish(), (0, "value right\n", ""))

    def folder(self):
        return sorted(path.name for path in self.machine.shared_folder.iterdir())

    def changed(self, *words, leaves_the_file=False, **options):
        with Guest(self.machine, "change", *words, CROSSOVER_JOB="guest", CROSSOVER_LEASE_MS="200", **options) as guest:
            guest.until("ready")
            guest.tell()
            guest.until("changed")
            # Both go on in turns: neither is held by the other, and nobody has taken it for dead.
            self.await_turns("guest", 10)
            self.await_turns("peer", 10)
            self.assertEqual(status(self.machine)[0]["reaped_count"], 0)
            self.end_peer()
            code, out, errors = guest.finish()
            self.assertEqual((code, out, errors), (0, "value right\n", ""))
        if not leaves_the_file:
            self.assertEqual(self.folder(), [])
        # The next one finds a place in good order, and leaves none behind.
        with Guest(self.machine, "uuids", CROSSOVER_JOB="next") as after:
            after.until("ready")
            (device,) = status(self.machine)
            self.assertEqual([job["name"] for job in device["jobs"]], ["next"])
            self.assertEqual(after.finish(), (0, "", ""))
        self.assertEqual(self.folder(), [])

    def test_nothing(self):
        self.changed("nothing", "-")

    def test_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        # It may not remove the file in root's folder any more.
        self.changed("user", 12345, leaves_the_file=True)

    def test_another_root_folder(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to change its root folder")
        with tempfile.TemporaryDirectory() as empty:
            # It does not see the file any more.
            self.changed("root", empty, leaves_the_file=True)
            self.assertEqual(os.listdir(empty), [])

    def test_the_first_thread_ends(self):
        self.changed("thread", "-")

    def test_umask(self):
        self.end_peer()
        for mask in (0o777, 0o000, 0o027):
            folder = self.machine.folder / f"made-{mask:03o}"
            before = os.umask(mask)
            try:
                guest = Guest(self.machine, "uuids", CROSSOVER_JOB="guest", CROSSOVER_DIR=str(folder))
            finally:
                os.umask(before)
            with guest:
                guest.until("ready")
                self.assertEqual(folder.stat().st_mode & 0o7777, 0o700)
                self.assertEqual([path.stat().st_mode & 0o7777 for path in folder.iterdir()], [0o600])
                with Guest(self.machine, "uuids", CROSSOVER_JOB="second", CROSSOVER_DIR=str(folder)) as second:
                    second.until("ready")
                    self.assertEqual(len(status(self.machine, folder)[0]["jobs"]), 2)
                    self.assertEqual(second.finish()[0], 0)
                self.assertEqual(guest.finish()[0], 0)

    def left(self, how, leave):
        """A program with the turn goes away; the peer goes on at once, not when the lease is over."""
        with Guest(self.machine, "leave", how, CROSSOVER_JOB="guest", CROSSOVER_LEASE_MS="10000") as guest:
            lines = guest.until("ready")
            await_condition(lambda: (status(self.machine)[0]["turn"] or {}).get("job") == "guest", "its turn")
            expired = status(self.machine)[0]["expired_count"]
            leave(guest)
            await_condition(lambda: (status(self.machine)[0]["turn"] or {}).get("job") == "peer", "the peer's turn")
            (device,) = status(self.machine)
            self.assertEqual((device["reaped_count"], device["expired_count"]), (1, expired))
            self.assertEqual([client["job"] for client in device["clients"]], ["peer"])
            if how == "program":
                self.assertIsNone(guest.process.poll(), "the program it became should still run")
            for line in lines:
                os.kill(int(line), 0)  # the child lives
                os.kill(int(line), signal.SIGKILL)
        self.end_peer()
        self.assertEqual(self.folder(), [])

    def test_a_child_outlives_its_parent(self):
        self.left("child", lambda guest: guest.process.kill())

    def test_becomes_another_program(self):
        self.left("program", lambda guest: guest.tell())


if __name__ == "__main__":
    unittest.main()
