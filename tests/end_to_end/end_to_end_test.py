# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests on the virtual GPU: losses bit for bit those of a solo run, whatever joins, leaves or dies, and turns
really taken. No figure here is a time with an upper bound; those are reported by the benchmark end-to-end."""

import unittest

import scenarios
from machine import Build


class EndToEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bench = scenarios.Bench(Build.from_environment().check())

    def same_losses(self, result):
        self.assertTrue(self.bench.same_losses(result), (result.name, result.losses, self.bench.reference.losses))

    def test_a_preloaded_job_alone_computes_the_same(self):
        preloaded, _ = self.bench.solo(preload=True)
        self.assertEqual(preloaded.losses, self.bench.reference.losses)

    def test_two_shells_take_turns(self):
        shared = scenarios.two_shells(self.bench)
        free = scenarios.two_shells(self.bench, preload=False)
        for result in shared["results"] + free["results"]:
            self.same_losses(result)
        # Side by side, two such jobs compute at the same time for a good part; in turns they nearly never do.
        self.assertLess(shared["both_computing"], 0.5 * free["both_computing"])

    def test_a_third_job_joins_and_leaves(self):
        found = scenarios.third_job(self.bench)
        for result in [*found["results"], found["third"]]:
            self.same_losses(result)
        for part in ("before", "during", "after"):
            self.assertLess(found[part], 0.25, part)

    def test_small_pieces_pass_and_nothing_else_does(self):
        for pattern in ("fsdp", "tensor_parallel"):
            found = scenarios.patterns_in_turns(self.bench.build, pattern)
            for result in found["results"]:
                self.assertEqual(result.losses, found["alone"].losses, pattern)
            self.assertEqual(found["verdict"].broken, [], pattern)
            self.assertGreater(found["verdict"].kernels, 100, pattern)
            self.assertGreater(found["passed"], 0, pattern)

    def test_hidden_communication_gives_way(self):
        found = scenarios.hidden_beside_exposed(self.bench.build)
        for result, alone in zip(found["results"], found["alone"]):
            self.assertEqual(result.losses, alone.losses)
        # Both ways are tried, four rounds each at least, on two devices.
        self.assertGreater(sum(part > 0.4 for part in found["shared"]), 8, found["shared"])
        self.assertGreater(sum(part < 0.1 for part in found["shared"]), 8, found["shared"])

    def test_a_job_killed_in_its_turn_does_not_hold_the_other(self):
        found = scenarios.kill_holder(self.bench)
        self.same_losses(found["survivor"])
        self.assertGreater(found["gap_ms"], 0)


if __name__ == "__main__":
    unittest.main()
