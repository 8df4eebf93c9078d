# SPDX-License-Identifier: Apache-2.0
"""Two jobs meet exactly where they share a physical device or MIG instance, whatever they call it."""

import contextlib
import itertools
import unittest

from place import Guest, VirtualMachine, await_condition, listed_devices, programs, status


def plain(uuid):
    return uuid[4:].replace("-", "")


class Identity(unittest.TestCase):
    def setUp(self):
        self.build, _, _ = programs()

    def check_matrix(self, machine, settings):
        """Starts a program for each setting, all at once; what each reports of itself decides whom it must have met.
        Returns {setting: [(UUID of the GPU, UUID)] as it counts its devices}."""
        with contextlib.ExitStack() as stack:
            guests = {}
            for number, (name, variables) in enumerate(settings.items()):
                guests[name] = stack.enter_context(Guest(machine, "uuids", CROSSOVER_JOB=f"job{number}", **variables))
            uses = {name: [tuple(line.split()) for line in guest.until("ready")] for name, guest in guests.items()}
            met = {}  # (job, job) -> UUIDs of the segments in which both are
            for device in status(machine):
                jobs = sorted(job["name"] for job in device["jobs"] if job["clients"])
                for pair in itertools.combinations(jobs, 2):
                    met.setdefault(pair, set()).add(plain(device["uuid"]))
                for client in device["clients"]:
                    name = list(settings)[int(client["job"][3:])]
                    self.assertEqual(uses[name][client["ordinal"]][1], plain(device["uuid"]), name)
            for (i, one), (j, two) in itertools.combinations(enumerate(settings), 2):
                shared = {own for _, own in uses[one]} & {own for _, own in uses[two]}
                pair = tuple(sorted((f"job{i}", f"job{j}")))
                self.assertEqual(met.get(pair, set()), shared, f"{one} and {two}")
            for name, guest in guests.items():
                code, _, errors = guest.finish()
                self.assertEqual((code, errors), (0, ""), name)
        await_condition(lambda: not status(machine), "an empty folder")
        return uses

    def test_whole_gpus(self):
        with VirtualMachine(self.build, ["--devices", 4]) as machine:
            uuid = [gpu for gpu, _ in listed_devices(machine)]
            visible = {
                "all": None, "first": "0", "second": "1", "reordered": "2,0", "other order": "3,1", "by UUID": uuid[2],
                "by prefix": uuid[3][:12] + ",0", "UUID and index": f"{uuid[1]},3", "up to the invalid": "0,9,1",
                "none": "", "invalid first": "x,0", "twice": "1,1", "bus order": "1,0",
            }
            settings = {name: {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
                        for name, value in visible.items()}
            settings["bus order"]["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            settings["fastest first"] = {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
            uses = self.check_matrix(machine, settings)
            want = {"all": [0, 1, 2, 3], "first": [0], "second": [1], "reordered": [2, 0], "other order": [3, 1],
                    "by UUID": [2], "by prefix": [3, 0], "UUID and index": [1, 3], "up to the invalid": [0], "none": [],
                    "invalid first": [], "twice": [], "bus order": [1, 0], "fastest first": [1, 0]}
            for name, numbers in want.items():
                self.assertEqual(uses[name], [(plain(uuid[n]), plain(uuid[n])) for n in numbers], name)

    def test_mig_instances(self):
        with VirtualMachine(self.build, ["--devices", 2, "--mig", 2]) as machine:
            (gpu0, (i00, i01)), (gpu1, (i10, i11)) = listed_devices(machine)
            visible = {"all": None, "GPU 0": "0", "GPU 1": "1", "GPU 1 by UUID": gpu1, "GPU 0 by prefix": gpu0[:14],
                       "0/0": i00, "0/1": i01, "0/1 again": i01, "1/0": i10, "1/1": i11, "two of one": f"{i01},{i00}",
                       "of both": f"{i11},{i00}", "unknown": "MIG-" + gpu0[4:], "none": ""}
            uses = self.check_matrix(machine, {name: {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
                                               for name, value in visible.items()})
            want = {"all": (gpu0, i00), "GPU 0": (gpu0, i00), "GPU 1": (gpu1, i10), "GPU 1 by UUID": (gpu1, i10),
                    "GPU 0 by prefix": (gpu0, i00), "0/0": (gpu0, i00), "0/1": (gpu0, i01), "0/1 again": (gpu0, i01),
                    "1/0": (gpu1, i10), "1/1": (gpu1, i11), "two of one": (gpu0, i01), "of both": (gpu1, i11)}
            for name in visible:
                # One instance a process, as with the real driver, which knows its own UUID and its GPU's.
                pairs = [tuple(plain(uuid) for uuid in want[name])] if name in want else []
                self.assertEqual(uses[name], pairs, name)


if __name__ == "__main__":
    unittest.main()
