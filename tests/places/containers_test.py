# SPDX-License-Identifier: Apache-2.0
"""Whole programs in containers that share one folder: namespaces as container runtimes make them, one virtual GPU."""

import subprocess
import unittest
from pathlib import Path

from place import Guest, Jobs, VirtualMachine, await_condition, programs, status, turns, wait_for_turns

PLAIN = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
WITH_USERS = [*PLAIN, "--user", "--map-root-user"]
# A network of its own has nothing but a loopback device, as every container's first address does.
WITH_NETWORK = [*PLAIN, "--net"]


class Containers(unittest.TestCase):
    def setUp(self):
        self.build, _, _ = programs()

    def need(self, around):
        done = subprocess.run([*around, "true"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            self.skipTest(f"namespaces are not permitted here: {done.stderr.strip()}")

    def unnamed_jobs(self, around):
        self.need(around)
        with VirtualMachine(self.build, ["--devices", 1]) as machine:
            with Guest(machine, "change", "nothing", "-", around=around, CROSSOVER_LEASE_MS="50") as one, \
                    Guest(machine, "change", "nothing", "-", around=around, CROSSOVER_LEASE_MS="50") as two:
                one.until("ready")
                two.until("ready")
                (device,) = status(machine)
                self.assertEqual([client["pid"] for client in device["clients"]], [1, 1])
                self.assertEqual([job["name"] for job in device["jobs"]], ["pid-1", "pid-1"])
                self.assertEqual(len({job["key"] for job in device["jobs"]}), 2)
                for guest in (one, two):
                    guest.tell()
                    guest.until("changed")
                before = turns(machine)
                await_condition(lambda: turns(machine) > [before[0] + 20], "turns of both")
                one.process.kill()  # and with it what is inside
                await_condition(lambda: len(status(machine)[0]["clients"]) == 1, "the dead one to be found")
                self.assertEqual(two.finish(), (0, "value right\n", ""))
            self.assertEqual(list(machine.shared_folder.iterdir()), [])

    def test_unnamed_jobs_of_equal_process_ids(self):
        self.unnamed_jobs(PLAIN)

    def test_unnamed_jobs_in_user_namespaces(self):
        self.unnamed_jobs(WITH_USERS)

    def keys_of(self, arounds, **variables):
        """Keys of the jobs that two processes make which a launcher gave the same variables."""
        with VirtualMachine(self.build, ["--devices", 1]) as machine, \
                Guest(machine, "uuids", around=arounds[0], **variables) as one, \
                Guest(machine, "uuids", around=arounds[1], **variables) as two:
            one.until("ready")
            two.until("ready")
            (device,) = status(machine)
            self.assertEqual(len(device["clients"]), 2)
            return {job["key"] for job in device["jobs"]}

    def test_loopback_addresses_name_a_job_in_one_network_only(self):
        self.need(WITH_NETWORK)
        for address in ("127.0.0.1", "localhost", "::1"):
            for launcher in ({"MASTER_ADDR": address, "MASTER_PORT": "29500", "WORLD_SIZE": "2"},
                             {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500"}):
                apart = self.keys_of([WITH_NETWORK, WITH_NETWORK], **launcher)
                self.assertEqual(len(apart), 2, f"{launcher} in two containers")
                together = self.keys_of([(), PLAIN], **launcher)
                self.assertEqual(len(together), 1, f"{launcher} in one network")

    def test_other_addresses_name_a_job_in_all_containers(self):
        self.need(WITH_NETWORK)
        launcher = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
        self.assertEqual(len(self.keys_of([WITH_NETWORK, WITH_NETWORK], **launcher)), 1)
        self.assertEqual(len(self.keys_of([WITH_NETWORK, WITH_NETWORK], CROSSOVER_JOB="same")), 1)

    def test_whole_jobs_with_a_container_for_each_rank(self):
        self.need(PLAIN)
        with Jobs() as jobs:
            wrapper = Path(jobs.machine.folder) / "in_container"
            wrapper.write_text(f'#!/bin/sh\nexec {" ".join(PLAIN)} "{self.build.program}" "$@"\n', encoding="utf-8")
            wrapper.chmod(0o755)
            jobs.build.program = wrapper
            seen = []

            def meanwhile(*running):
                wait_for_turns(running, jobs.machine)
                seen.extend(status(jobs.machine))

            self.assertEqual(jobs.pair(meanwhile), {"A": [[], []], "B": [[], []]})
            for device in seen:
                self.assertEqual([client["pid"] for client in device["clients"]], [1, 1])
            self.assertEqual(list(jobs.machine.shared_folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
