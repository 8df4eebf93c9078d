# SPDX-License-Identifier: Apache-2.0
"""Tests of what is pure in a chaos run: the plan is a function of the seed, and the judge finds each kind of double
holder and excuses nothing but what it says. No process, no clock."""

import json
import sys
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("scripts/lib", "tests/bench")]

import chaos_judge
import chaos_plan
import chaos_report
from chaos_judge import MS, Subject

UUID = "GPU-0"


class PlanTest(unittest.TestCase):
    def test_the_same_seed_does_the_same(self):
        self.assertEqual([chaos_plan.episode(n, 7) for n in range(50)], [chaos_plan.episode(n, 7) for n in range(50)])
        self.assertEqual([chaos_plan.file_attack(n, 7) for n in range(200)],
                         [chaos_plan.file_attack(n, 7) for n in range(200)])

    def test_another_seed_does_something_else(self):
        self.assertNotEqual([chaos_plan.episode(n, 7) for n in range(5)], [chaos_plan.episode(n, 8) for n in range(5)])

    def test_everything_happens(self):
        episodes = [chaos_plan.episode(n, 1) for n in range(400)]
        acts = [act for each in episodes for act in each.acts]
        self.assertEqual({act.what for act in acts}, {"kill", "kill launcher", "stop"})
        for what in ("kill", "stop"):
            self.assertEqual({act.rank for act in acts if act.what == what}, {None, 0, 1})
        self.assertEqual({each.ending for each in episodes}, {"return", "exec", "orphan"})
        self.assertEqual({each.namespace for each in episodes}, {False, True})
        stops = [act.length_ms for act in acts if act.what == "stop"]
        self.assertLess(min(stops), 50)
        self.assertGreater(max(stops), 2000)
        attacks = [chaos_plan.file_attack(n, 1) for n in range(1000)]
        self.assertEqual({each.what for each in attacks if each}, {"remove", "overwrite", "truncate"})

    def test_whoever_is_not_killed_ends_by_itself(self):
        for each in (chaos_plan.episode(n, 1) for n in range(400)):
            self.assertEqual(each.iterations > 1000, each.killed, each)
            self.assertTrue(each.ending != "exec" or each.ranks == 1, each)


class Scene:
    """Two jobs, "a" (process 1) and "b" (process 2), on one device; times in ms."""

    def __init__(self, attached=("a", "b")):
        self.ring = [{"time_ns": 0, "kind": "open"}]
        self.compute = []
        self.subjects = {name: Subject(name, [(pid, 0, 10**15)], long_lived=True) for pid, name in ((1, "a"), (2, "b"))}
        for name in attached:
            self.event(1, "attach", name)

    def event(self, at, kind, name=None):
        pid = {"a": 1, "b": 2, None: 0}[name]
        self.ring.append({"time_ns": int(at * MS), "kind": kind, "value": pid, "client": pid, "job": pid,
                          "key": f"{pid:016x}"})
        return self

    def turn(self, name, start, end, how="release"):
        return self.event(start, "grant", name).event(end, how, name)

    def kernel(self, name, submitted, start, end):
        pid = {"a": 1, "b": 2}[name]
        self.compute.append((0, pid, int(submitted * MS), int(start * MS), int(end * MS)))
        return self

    def segments(self):
        rows = [json.dumps(dict(row, device=UUID, file=row.get("file", 1))) for row in self.ring]
        return chaos_judge.read_ring(rows)

    def judge(self):
        segments, names = self.segments()
        # So that the device's number in the truth log is known.
        self.kernel("a", 1.5, 1.5, 1.5)
        return chaos_judge.judge(list(self.subjects.values()), segments, names, self.compute)


class JudgeTest(unittest.TestCase):
    def excused(self, verdict, why, ms):
        self.assertEqual(verdict.broken, [])
        self.assertEqual(set(verdict.excused), {why}, dict(verdict.excused))
        self.assertAlmostEqual(verdict.excused[why][1] / MS, ms, places=3)

    def test_turns_kept(self):
        scene = Scene().turn("a", 10, 20).turn("b", 20, 30).kernel("a", 11, 11, 20).kernel("b", 20, 20, 29)
        verdict = scene.judge()
        self.assertEqual((verdict.broken, dict(verdict.excused), verdict.together_ns), ([], {}, 0))
        self.assertEqual(verdict.double_grants, 0)
        self.assertEqual(verdict.kernels, 3)

    def test_compute_without_a_turn_is_a_double_holder(self):
        scene = Scene().turn("a", 2000, 2020).kernel("a", 2001, 2001, 2019).kernel("b", 2005, 2006, 2009)
        verdict = scene.judge()
        self.assertEqual(len(verdict.broken), 1)
        self.assertAlmostEqual(verdict.excused["NO TURN"][1] / MS, 3)

    def test_alone_at_a_time_it_harms_nobody(self):
        # Without a turn, but nothing runs beside it.
        verdict = Scene().turn("a", 2000, 2020).kernel("a", 2001, 2001, 2004).kernel("b", 2005, 2006, 2009).judge()
        self.assertEqual((verdict.broken, dict(verdict.excused)), ([], {}))

    def test_giving_back_while_computing_is_a_double_holder(self):
        scene = Scene().turn("a", 10, 20).turn("b", 20, 40).kernel("a", 11, 11, 30).kernel("b", 20, 20, 39)
        verdict = scene.judge()
        self.assertEqual(len(verdict.broken), 1)
        self.assertAlmostEqual(verdict.excused["GIVEN BACK TOO EARLY"][1] / MS, 10)

    def test_a_hair_over_the_release_is_the_clocks(self):
        scene = Scene().turn("a", 10, 20).turn("b", 20, 40).kernel("a", 11, 11, 20.2).kernel("b", 20, 20, 39)
        self.excused(scene.judge(), "clock", 0.2)

    def test_what_was_submitted_runs_on_after_the_lease(self):
        scene = Scene().turn("a", 10, 20, "expire").turn("b", 20, 40).kernel("a", 11, 11, 30).kernel("b", 20, 20, 39)
        self.excused(scene.judge(), "lease tail", 10)

    def test_one_launch_is_under_way_when_the_lease_ends_and_no_second(self):
        scene = Scene().turn("a", 10, 20, "expire").turn("b", 20, 2040).kernel("b", 20, 20, 2039)
        self.excused(scene.kernel("a", 25, 25, 28).judge(), "under way", 3)
        scene = Scene().turn("a", 10, 20, "expire").turn("b", 20, 2040).kernel("b", 20, 20, 2039)
        verdict = scene.kernel("a", 25, 25, 28).kernel("a", 29, 29, 30).judge()
        self.assertEqual(len(verdict.broken), 1)

    def test_a_small_piece_passes_where_it_says_so(self):
        def scene():
            return Scene().turn("a", 2000, 2020).kernel("a", 2001, 2001, 2019)
        self.excused(scene().event(2005, "passed", "b").kernel("b", 2005, 2006, 2007).judge(), "small piece", 1)
        self.assertEqual(len(scene().kernel("b", 2005, 2006, 2007).judge().broken), 1, "without saying so")
        other = scene().event(2005, "passed", "a").kernel("b", 2005, 2006, 2007)
        self.assertEqual(len(other.judge().broken), 1, "another job's word")
        old = scene().event(1000, "passed", "b").turn("b", 1100, 1200).kernel("b", 2005, 2006, 2007)
        self.assertEqual(len(old.judge().broken), 1, "of before its last turn")
        soon = scene().event(2005, "passed", "b").kernel("b", 2005, 2006, 2007).event(2005.5, "grant", "b")
        self.excused(soon.judge(), "small piece", 1)
        pieces = scene().event(2005, "passed", "b")
        for at in range(3):
            pieces.kernel("b", 2005 + 0.1 * at, 2006 + at, 2007 + at)
        verdict = pieces.judge()
        self.assertEqual(set(verdict.excused), {"small piece", "long piece"}, "all of a piece counts")

    def test_a_small_piece_may_turn_out_long_once_and_not_twice(self):
        scene = Scene().turn("a", 2000, 2100).kernel("a", 2001, 2001, 2099)
        scene.event(2005, "passed", "b").kernel("b", 2005, 2005, 2015)
        self.excused(scene.judge(), "long piece", 10)
        verdict = scene.event(2020, "passed", "b").kernel("b", 2020, 2020, 2030).judge()
        self.assertEqual(len(verdict.broken), 1)

    def test_hearing_of_another_takes_a_while_and_no_longer(self):
        def scene(at):
            made = Scene(attached=("a",)).event(100, "attach", "b").event(101, "grant", "b")
            return made.kernel("b", 102, 102, 2000).kernel("a", at, at, at + 5)
        self.excused(scene(110).judge(), "told late", 5)
        self.assertEqual(len(scene(900).judge().broken), 1)
        late = scene(900)
        late.subjects["a"].stops.append((1, 105 * MS, 890 * MS))
        self.excused(late.judge(), "told late", 5)

    def test_submitted_alone_it_may_run_beside_another(self):
        scene = Scene(attached=("a",)).kernel("a", 50, 50, 150).event(100, "attach", "b").event(101, "grant", "b")
        self.excused(scene.kernel("b", 102, 102, 200).judge(), "alone", 48)

    def test_a_fill_before_the_first_launch_is_no_launch(self):
        def scene(length):
            made = Scene(attached=("a",)).turn("a", 1000, 3000).kernel("a", 1001, 1001, 2999)
            return made.event(2500, "attach", "b").kernel("b", 2400, 2400, 2400 + length)
        self.excused(scene(0.01).judge(), "memory", 0.01)
        self.assertEqual(len(scene(0.1).judge().broken), 1)
        self.assertEqual(len(scene(0.1).kernel("b", 2450, 2450, 2450.01).judge().broken), 2, "after a launch")

    def test_who_said_so_goes_ungated(self):
        scene = Scene().turn("a", 2000, 2020).kernel("a", 2001, 2001, 2019).kernel("b", 2005, 2006, 2009)
        scene.subjects["b"].ungated = True
        self.excused(scene.judge(), "ungated", 3)

    def test_a_key_that_comes_again_is_of_who_is_attached_then(self):
        # An unnamed job has the address of an earlier one: two processes, one after the other, with one key.
        scene = Scene(attached=("a",)).turn("a", 2000, 2020).kernel("a", 2001, 2001, 2019)
        scene.subjects["c"] = Subject("c", [(3, 3000 * MS, 10**15)])
        key = f"{1:016x}"
        for at, kind, pid in ((2500, "detach", 1), (3000, "attach", 3)):
            scene.ring.append({"time_ns": at * MS, "kind": kind, "value": pid, "client": 1, "job": 1, "key": key})
        segments, names = scene.turn("a", 3100, 3200).segments()
        owners = chaos_judge.Owners(list(scene.subjects.values()), segments, names)
        found = [owners.of_key(key, at * MS).name for at in (0, 2010, 3000, 3150)]
        self.assertEqual(found, ["a", "a", "c", "c"])
        self.assertIsNone(owners.of_key("none", 0))

    def test_two_turns_at_once_are_found_in_the_ring(self):
        verdict = Scene().event(10, "grant", "a").event(15, "grant", "b").judge()
        self.assertEqual(verdict.double_grants, 1)
        self.assertEqual(Scene().turn("a", 10, 15, "expire").event(15, "grant", "b").judge().double_grants, 0)

    def test_a_kernel_of_nobody_is_told(self):
        scene = Scene()
        scene.compute.append((0, 99, 5, 6, 7))
        self.assertEqual(scene.judge().unknown, 1)

    def test_the_longest_stall_and_the_lease_that_explains_it(self):
        scene = Scene().turn("a", 10, 20).event(30, "wait", "a").turn("b", 20, 520, "expire").event(520, "grant", "a")
        scene.subjects["b"].stops.append((2, 25 * MS, 3000 * MS))
        scene.kernel("a", 11, 11, 20).kernel("a", 521, 521, 530).kernel("b", 21, 21, 24)
        segments, names = scene.segments()
        subjects = list(scene.subjects.values())
        owners, histories = chaos_judge.histories(subjects, segments, names, scene.compute)
        gap, wait = chaos_report.stalls(subjects, owners, histories, scene.compute)
        self.assertEqual((gap.job, gap.device, gap.gap_ms), ("a", 0, 501))
        self.assertEqual((wait.job, wait.gap_ms), ("a", 490))
        self.assertIn("b had the turn for 500 ms, ended by its lease, while it was stopped for", gap.why)


if __name__ == "__main__":
    unittest.main()
