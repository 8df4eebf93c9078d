# SPDX-License-Identifier: Apache-2.0
"""The efficiency grid's cells, figures, aims, tables and picture, on figures made by hand; and, with "run BUILD", a few
tiny cells from end to end, of which structure, losses and who computed beside whom are looked at, never times."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "lib"))

import grid_figures as figures
from grid_cells import CENTRE, RATIOS, AskedJob, Cell, all_cells
from grid_figures import Alone, Outcome, Shared
from heat_map import colour, heat_map
from intervals import Phases, iteration_ends, mean_period, most_inside, unfilled
from markers import replace_between

MS = 1_000_000


class Asked(unittest.TestCase):
    def test_buckets_lie_where_the_program_submits_them(self):
        # Forward is a third of C, the backward pass of each of n layers (2/3)/n of it.
        for buckets, place in ((1, 1.0), (2, 1 / 3 + 2 / 6), (4, 1 / 3 + 1 / 6), (10, 1 / 3 + 2 / 30)):
            self.assertAlmostEqual(AskedJob(40, 20, buckets).first_bucket, place)
        self.assertAlmostEqual(AskedJob(40, 20, 3).first_bucket, 1 / 3 + 2 / 6, msg="4 layers in 3: the first has two")

    def test_exposed(self):
        for job, exposed in ((AskedJob(40, 20), 20), (AskedJob(40, 20, 4), 5), (AskedJob(40, 20, 2), 10),
                             (AskedJob(40, 20, 10), 2), (AskedJob(40, 80, 4), 60)):  # the last: the link is behind
            self.assertAlmostEqual(job.exposed_ms, exposed)
            self.assertAlmostEqual(job.alone_ms, 40 + exposed)

    def test_a_ring_of_more_ranks_gets_fewer_bytes_for_the_same_time(self):
        # 20 ms at 0.1 Gbit/s are 0.25 MB over each link; a ring moves 2 (n - 1) / n of the buffer.
        for ranks, megabytes in ((2, 0.25), (4, 0.25 / 1.5), (8, 0.25 / 1.75)):
            self.assertAlmostEqual(CENTRE.workload(ranks, 10).comm_mb, megabytes)

    def test_arguments(self):
        row = AskedJob(40, 20, 6, "fsdp").workload(2, 10, 0.5).arguments()
        self.assertEqual(row[:4], ["--pattern", "fsdp", "--layers", "6"])
        self.assertEqual(row[row.index("--compute-ms") + 1], "20")
        self.assertIn("--overlap", row)
        self.assertNotIn("--overlap", CENTRE.workload(2, 10).arguments())


class Periods(unittest.TestCase):
    def test_an_iteration_ends_with_its_last_collective(self):
        collectives = [(start * MS, (start + 2) * MS) for start in (1, 11, 15, 21, 25, 31, 35, 41)]
        self.assertEqual(iteration_ends(collectives, (10 * MS, 40 * MS), 3), [17 * MS, 27 * MS, 37 * MS])
        self.assertEqual(iteration_ends(collectives, (10 * MS, 50 * MS), 3), [], "seven in three iterations")
        self.assertEqual(iteration_ends([], (10 * MS, 40 * MS), 3), [])

    def test_the_mean_is_of_whole_iterations_in_the_window(self):
        ends = [17 * MS, 27 * MS, 39 * MS, 90 * MS]
        self.assertAlmostEqual(mean_period(ends, (10 * MS, 50 * MS)), 11)
        self.assertIsNone(mean_period(ends, (20 * MS, 50 * MS)))


class Idle(unittest.TestCase):
    def test_the_most_in_a_window(self):
        row = [(0, 10), (15, 25), (30, 31), (32, 40)]
        for span, most in ((5, 5), (10, 10), (12, 10), (15, 10), (20, 15), (25, 20), (40, 29)):
            self.assertEqual(most_inside(row, span), most, span)
        self.assertEqual(most_inside([], 10), 0)

    def test_what_the_other_cannot_fill(self):
        row, part = [(0, 10), (12, 13), (25, 40), (41, 50)], (0, 50)
        self.assertEqual(unfilled(row, part, []), 2 + 12 + 1, "the kernels between the gaps do not part them")
        self.assertEqual(unfilled(row, part, [(100, 110)]), 15 - 10)
        self.assertEqual(unfilled(row, part, [(100, 200)]), 0)
        self.assertEqual(unfilled(row, (30, 50), []), 1, "windows that begin there")

    @staticmethod
    def alone(devices):
        """A job whose iteration of 70 ms computes so on each device: [(start, end)] in ms."""
        computed = {}
        for device, row in devices.items():
            rows = [((70 * k + s) * MS, (70 * k + e) * MS) for k in range(5) for s, e in row]
            computed[device] = rows, [(70 * k * MS, 70 * (k + 1) * MS) for k in range(4)]
        return Alone(70, Phases(40, 30, 30), 70, 0, 0, [], computed)

    def test_a_stage_that_nobody_can_fill(self):
        # Ten of every fifteen, and fifteen away: the other one has ten for it, so five are idle.
        stage = self.alone({0: [(0, 40)], 1: [(0, 10), (15, 25), (30, 40), (45, 55)]})
        self.assertAlmostEqual(figures.idle_ms([stage, stage]), 5)
        whole = self.alone({0: [(0, 40)], 1: [(0, 40)]})
        self.assertAlmostEqual(figures.idle_ms([whole, whole]), 0)
        self.assertAlmostEqual(figures.idle_ms([stage, stage, stage]), 0, msg="nothing is known of three")

    def test_it_is_part_of_the_bound_where_jobs_keep_step(self):
        stage = self.alone({1: [(0, 10), (15, 25), (30, 40), (45, 55)]})
        self.assertAlmostEqual(Shared([90, 90], True, 0, 0).efficiency([stage, stage], False), 85 / 90)
        self.assertAlmostEqual(Shared([90, 99], True, 0, 0).efficiency([stage, stage], False), 40 / 90 + 40 / 99)


class Cells(unittest.TestCase):
    def test_the_list(self):
        cells = all_cells()
        self.assertEqual(len({cell.name for cell in cells}), len(cells))
        self.assertTrue(36 <= len(cells) <= 48, len(cells))
        self.assertTrue(7 <= sum(cell.quick for cell in cells) <= 9)
        places = [(cell.row, cell.column) for cell in cells if cell.column]
        self.assertEqual(len(set(places)), len(places), "two cells at one place of the map")
        self.assertLessEqual({column for _, column in places}, set(RATIOS))

    def test_it_covers_what_it_says(self):
        cells = all_cells()
        self.assertEqual({len(cell.jobs) for cell in cells}, {2, 3, 4})
        self.assertEqual({cell.devices for cell in cells}, {1, 2, 4, 8})
        self.assertEqual({cell.nodes for cell in cells}, {1, 2})
        self.assertEqual({cell.shared_link for cell in cells}, {False, True})
        exposed = [cell.jobs[0].exposed_ms / cell.jobs[0].communicate_ms for cell in cells]
        self.assertAlmostEqual(min(exposed), 0.1)
        self.assertAlmostEqual(max(exposed), 1)
        self.assertTrue(any(cell.timesliced for cell in cells))
        self.assertTrue(any(len({job.pattern for job in cell.jobs}) > 1 for cell in cells))

    def test_iterations_are_long_enough_for_this_machine(self):
        for cell in all_cells():
            self.assertGreaterEqual(cell.asked_bound_ms(), 40, cell.name)

    def test_a_shorter_job_makes_more_iterations(self):
        short, long = Cell("x", "row", (AskedJob(20, 10), AskedJob(60, 30))).workloads(1500, 16)
        self.assertEqual((short.iterations, long.iterations), (51, 17))

    def test_one_device_has_two_ranks_that_share_it(self):
        cell = Cell("x", "row", (CENTRE,), devices=1)
        self.assertEqual((cell.ranks, cell.ranks_a_device), (2, 2))
        self.assertEqual(cell.workloads(1500, 16)[0].compute_ms, CENTRE.compute_ms / 2)
        nodes = Cell("x", "row", (CENTRE,), devices=1, nodes=2)
        self.assertEqual((nodes.ranks, nodes.ranks_a_device), (2, 1))


def alone(compute, communicate, exposed, asked=0.0, spread=0.0, busy=0.1):
    return Alone(compute + exposed, Phases(compute, communicate, exposed), asked, spread, busy)


def outcome(name="x", periods=(80, 80), mps=((100, 100), (80, 80)), jobs=None, **more):
    jobs = jobs or [alone(40, 20, 20)] * 2
    asked = tuple(AskedJob(job.phases.compute, job.phases.communicate) for job in jobs)
    cell = Cell(name, more.pop("row", "row"), asked, more.pop("column", ""), shared_link=more.pop("shared_link", False))
    return Outcome(cell, jobs, [Shared(list(row), True, 0, 0.1) for row in mps],
                   Shared(list(periods), more.pop("losses", True), 0, more.pop("busy", 0.1)), **more)


class Figures(unittest.TestCase):
    def test_in_step_efficiency_is_the_bound_over_the_period(self):
        equal = [Phases(40, 20, 20)] * 2
        self.assertEqual(figures.efficiency(equal, [100, 100], False), 0.8)
        talkers = [Phases(10, 50, 50)] * 2
        self.assertEqual(figures.efficiency(talkers, [100, 100], True), 1.0)
        self.assertEqual(figures.efficiency(talkers, [100, 100], False), 0.6)

    def test_out_of_step_it_is_what_is_used_of_the_scarcest(self):
        # In 120 ms: three iterations of the short job, one of the long: 3 * 20 + 60 ms of compute.
        phases = [Phases(20, 10, 10), Phases(60, 30, 30)]
        self.assertAlmostEqual(figures.efficiency(phases, [40, 120], False), 1.0)
        self.assertAlmostEqual(figures.efficiency(phases, [60, 120], False), 5 / 6)
        self.assertAlmostEqual(figures.efficiency(phases, [30, 1000], False), 1.0, msg="the short job is never held")

    def test_row(self):
        row = figures.figures(outcome(periods=(82, 82), planned_ms=[80.0, 81.0]))
        self.assertTrue(row["in_step"])
        self.assertAlmostEqual(row["bound_ms"], 80)
        self.assertAlmostEqual(row["efficiency"], 80 / 82)
        self.assertAlmostEqual(row["speed"], 120 / 82)
        self.assertAlmostEqual(row["mps_mean"], (1.2 + 1.5) / 2)
        self.assertAlmostEqual(row["mps_best"], 1.5)
        self.assertAlmostEqual(row["against_mps"], 120 / 82 / 1.35)
        self.assertAlmostEqual(row["prediction_error"], 80 / 82 - 1)
        self.assertAlmostEqual(row["handover_us"], 1000)
        row = figures.figures(outcome(periods=(60, 120), jobs=[alone(20, 10, 10), alone(60, 30, 30)]))
        self.assertFalse(row["in_step"])
        self.assertIsNone(row["bound_ms"])
        self.assertIsNone(row["handover_us"])
        self.assertAlmostEqual(row["speed"], 0.5 + 0.75)

    def test_hand_over_is_told_only_where_compute_bounds(self):
        self.assertIsNone(figures.handover_us([alone(20, 40, 40)] * 2, [62, 62], False))
        self.assertAlmostEqual(figures.handover_us([alone(40, 20, 20)] * 3, [123, 123, 123], False), 1000)
        slow = alone(40, 20, 20)
        slow.period_ms = 60.5  # the device waits for the program for 0.5 ms an iteration, in the job's turn
        self.assertAlmostEqual(figures.handover_us([slow] * 2, [82, 82], False), 500)

    def test_computing_parts(self):
        lanes = {(0, 1): {"compute": [(0, 40), (60, 80)]}, (0, 2): {"compute": [(30, 60), (200, 300)]},
                 (1, 3): {"compute": []}}
        some, several = figures.computing_parts(lanes, [[1, 3], [2]], (10, 110), 2)
        self.assertAlmostEqual(some, 70 / 200)
        self.assertAlmostEqual(several, 10 / 200)

    def test_spread(self):
        self.assertAlmostEqual(figures.spread([10.0] * 19 + [50.0]), 0)
        self.assertAlmostEqual(figures.spread([10, 10, 11, 11, 11, 11, 12, 12, 13, 10]), 0.1)


class Doubts(unittest.TestCase):
    def test_a_job_off_what_was_asked_is_the_hosts_fault(self):
        for job, doubts in ((alone(40, 20, 20, asked=60), []), (alone(40, 22, 22, asked=60), ["host-limited"]),
                            (alone(40, 22, 22), []), (alone(40, 22, 22, spread=0.03), ["host-limited"]),
                            (alone(40, 20, 20, busy=0.9), ["host busy"])):
            self.assertEqual(outcome(jobs=[job, alone(40, 20, 20)]).doubts, doubts)
        self.assertEqual(outcome(busy=0.9).doubts, ["host busy"])

    def test_they_are_not_counted(self):
        found = figures.report([outcome("good"), outcome("bad", periods=(200, 200), busy=0.9)], "d")
        self.assertEqual((found["summary"]["cells"], found["summary"]["counted"]), (2, 1))
        self.assertEqual(found["summary"]["worst_efficiency"], 1.0)
        self.assertEqual(figures.missed_aims(found), [])
        found = figures.report([outcome("bad", busy=0.9), Outcome(outcome().cell, error="no")], "d")
        self.assertEqual(len(figures.missed_aims(found)), 1)
        self.assertIn("no cell counts", figures.missed_aims(found)[0])


class Aims(unittest.TestCase):
    def missed(self, *outcomes):
        return " / ".join(figures.missed_aims(figures.report(outcomes, "d")))

    def test_each(self):
        self.assertEqual(self.missed(outcome()), "")
        self.assertIn("median efficiency 0.964", self.missed(outcome(periods=(83, 83))))
        self.assertIn("x: efficiency 0.889", self.missed(outcome("y"), outcome("z"), outcome(periods=(90, 90))))
        self.assertIn("x: slower than one after the other", self.missed(outcome(periods=(121, 121))))
        self.assertIn("of uncoordinated MPS", self.missed(outcome(mps=((78, 78),))))
        self.assertEqual(self.missed(outcome(mps=((79, 79),))), "")
        self.assertEqual(self.missed(outcome(planned_ms=[76.5, 83.5])), "")
        self.assertEqual(self.missed(outcome(planned_ms=[80, 85])), "plan of x: off by +6.2 %, aim 5 %")

    def test_with_either_gate(self):
        slow = Shared([95, 95], True, 0, 0.1)
        self.assertEqual(self.missed(outcome(crossover_stream=Shared([80, 80], True, 0, 0.1))), "")
        self.assertEqual(self.missed(outcome(crossover_stream=slow, mps=((100, 100),))),
                         "gate in the queues: median efficiency 0.842, aim 0.97 / "
                         "gate in the queues: x: efficiency 0.842, aim 0.9")


class Output(unittest.TestCase):
    def found(self):
        good = outcome("mapped", row="2 jobs", column="2:1", planned_ms=[80.0, 80.0])
        good.sliced, good.crossover_sliced = (Shared([100, 100], True, 0, 0.1) for _ in range(2))
        tiles = [outcome(f"tile-{k}", row="others") for k in range(8)]
        return figures.report([good, outcome("doubtful", row="others", losses=False, busy=0.95), *tiles,
                               Outcome(replace(good.cell, name="gone", row="others", column=""), error="rank 0 ended")],
                              "some device")

    def test_tables(self):
        text = figures.markdown(self.found())
        table = [line for line in text.splitlines() if line.startswith("|")]
        self.assertEqual({line.count("|") for line in table}, {len(figures.HEADER) + 1})
        self.assertEqual(len(table), 2 + 11)
        row = {line.split("|")[1].strip(): line for line in table}
        self.assertIn("time-sliced: speed 1.20, uncoordinated 1.20", row["mapped"])
        self.assertIn("+0.0 %", row["mapped"])
        self.assertIn("| NO | host busy |", row["doubtful"])
        self.assertIn("failed: rank 0 ended", row["gone"])
        self.assertEqual(len(figures.terminal(self.found()).splitlines()), 1 + 11 + 2)
        self.assertIn("11 cells, 9 of them count", text)

    def test_json_is_plain(self):
        found = self.found()
        self.assertEqual(json.loads(json.dumps(found, allow_nan=False)), found)

    def test_picture(self):
        drawing = heat_map(self.found())
        root = xml.etree.ElementTree.fromstring(drawing)
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(texts.count("1.000"), 10)
        self.assertEqual(texts.count("failed"), 1)
        self.assertEqual(drawing.count('fill="#e4e7eb"'), 2)
        height = float(root.get("height"))
        boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
        self.assertTrue(all(float(box.get("y")) + float(box.get("height")) < height for box in boxes))
        self.assertEqual(len({(box.get("x"), box.get("y")) for box in boxes}), len(boxes), "one tile over another")

    def test_colours_are_a_scale(self):
        self.assertEqual((colour(0), colour(0.80)), ("#d64541",) * 2)
        self.assertEqual((colour(1.0), colour(1.3)), ("#2f9e44",) * 2)
        self.assertEqual(len({colour(0.8 + k / 100) for k in range(21)}), 21)

    def test_plan_description(self):
        cell = Cell("x", "row", (AskedJob(40, 20, 4), AskedJob(40, 20, 1, "fsdp")))
        jobs, measured = figures.plan_description(cell, [alone(41, 21, 6), alone(42, 22, 12)], "m.json")
        self.assertEqual(jobs["jobs"][0], {"name": "job 1", "compute_ms": 41, "communicate_ms": 21, "buckets": 4,
                                           "first_bucket": 0.5})
        self.assertEqual(jobs["jobs"][1], {"name": "job 2", "measured": "m.json", "job": "job 2", "iterations": 1})
        self.assertEqual(measured["jobs"], [{"name": "job 2", "alone": {
            "compute_seconds": 0.042, "communicate_seconds": 0.022, "exposed_seconds": 0.012}}])

    def test_the_course_of_an_iteration(self):
        # Two iterations of 50 ms from 100: 20 ms, window 5, 2 ms, window 10, 13 ms that end in the next one's turn.
        rows = [(start + at, start + at + size) for start in (100, 150) for at, size in ((20, 5), (27, 10))]
        windows = [(start * MS, end * MS) for start, end in [(60, 80), *rows, (205, 300)]]
        span = 100 * MS, 200 * MS
        self.assertEqual(figures.course(windows, span, 2), [(33, 5), (2, 10)])
        self.assertEqual(figures.course(windows[:4], span, 2), [], "three windows in two iterations")
        self.assertEqual(figures.course([], span, 2), [])
        for short in ([(110 * MS, 110 * MS + 250_000)], [(110 * MS, 110 * MS + 500_000)]):
            self.assertEqual(figures.course(sorted(windows + short), span, 2), [(33, 5), (2, 10)])
        one = alone(40, 20, 15)
        one.course = [(33, 5), (2, 10)]
        jobs, _ = figures.plan_description(Cell("x", "row", (AskedJob(40, 20, 1, "fsdp"),)), [one], "m.json")
        self.assertEqual(jobs["jobs"], [{"name": "job 1", "steps": [{"compute_ms": 33, "communicate_ms": 5},
                                                                    {"compute_ms": 2, "communicate_ms": 10}]}])

    def test_the_stages_of_an_iteration(self):
        # Two iterations of 50 ms from 100: the first rank computes 20 ms, message of 5, the second 15, message of 10.
        def rank(computes, begins):
            return ([(start + at, start + at + size) for start in (100, 150) for at, size in computes],
                    [(start + begin, start + end) for start in (100, 150) for begin, end in zip(begins, (25, 50))])
        ranks = [rank([(0, 20)], (20, 25)), rank([(25, 15)], (0, 40))]
        ranks = [[[(start * MS, end * MS) for start, end in rows] for rows in each] for each in ranks]
        span = 100 * MS, 200 * MS
        self.assertEqual(figures.stages(ranks, span, 2), [([20, 0], 5), ([0, 15], 10)])
        self.assertEqual(figures.stages([ranks[0], [ranks[1][0], ranks[1][1][1:]]], span, 2), [], "a message of one")
        self.assertEqual(figures.stages(ranks, span, 3), [], "four messages in three iterations")
        self.assertEqual(figures.stages([[[], []]] * 2, span, 2), [])
        one = alone(20, 15, 15)
        one.course = figures.stages(ranks, span, 2)
        jobs, _ = figures.plan_description(Cell("x", "row", (AskedJob(40, 20, 1, "pipeline"),)), [one], "m.json")
        self.assertEqual(jobs["jobs"][0]["steps"], [{"compute_ms": [20, 0], "communicate_ms": 5},
                                                    {"compute_ms": [0, 15], "communicate_ms": 10}])

    def test_markers_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.md"
            path.write_text("a <b> old <e> c", encoding="utf-8")
            replace_between(path, "<b>", "<e>", "new")
            self.assertEqual(path.read_text(encoding="utf-8"), "a <b>new<e> c")
            with self.assertRaisesRegex(ValueError, "page.md"):
                replace_between(path, "<other>", "<e>", "x")
            self.assertEqual(path.read_text(encoding="utf-8"), "a <b>new<e> c")


class Run(unittest.TestCase):
    """Tiny cells on the virtual GPU: the usual one, several ranks on a device, several nodes."""

    build = None
    CELLS = ("2jobs-2to1-own", "device-1", "nodes-2-of-1")

    def bench(self, *arguments):
        environment = dict(os.environ, CROSSOVER_BUILD=self.build, SIMGPU_BUILD=self.build)
        program = [sys.executable, str(REPOSITORY / "tests" / "bench" / "grid.py")]
        return subprocess.run([*program, *arguments], env=environment, capture_output=True, text=True, timeout=400,
                              check=False)

    def test_bad_input(self):
        for arguments, word in ((("--cells", "("), "regular expression"), (("--cells", "nothing"), "fits no cell"),
                                (("--offsets", "0"), "'0'")):
            done = self.bench(*arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(word, done.stderr)

    def test_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            path, picture = Path(folder) / "grid.json", Path(folder) / "grid.svg"
            done = self.bench("--cells", f"^({'|'.join(self.CELLS)})$", "--offsets", "1", "--target-ms", "1",
                              "--iterations", "12", "--json", str(path), "--plot", str(picture), "--markdown")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = json.loads(path.read_text(encoding="utf-8"))
            xml.etree.ElementTree.parse(picture)
            again = self.bench("--from", str(path), "--markdown")
            self.assertEqual((again.returncode, again.stdout), (0, done.stdout))
        self.assertEqual(set(found["cells"]), set(self.CELLS))
        for name, cell in found["cells"].items():
            self.assertNotIn("error", cell, name)
            self.assertTrue(cell["losses_identical"], name)
            self.assertEqual(len(cell["planned_ms"]), 2)
            for job in cell["jobs"]:
                # By the devices' own clocks. A busy machine makes the programs ask for less, never for more.
                self.assertTrue(10 < job["compute_ms"] < 42, (name, job))
                self.assertGreater(job["communicate_ms"], 19, name)
            self.assertEqual(len(cell["mps_both_computing"]), 1)
            # Whatever the machine does: jobs that take turns compute one at a time, but for turns that a lease cut.
            self.assertLess(cell["both_computing"], 0.25, name)
            self.assertGreater(cell["computing"], 0.1, name)
        self.assertIn("sliced_speed", found["cells"]["2jobs-2to1-own"])
        self.assertEqual(done.stdout.count("\n| "), 1 + len(self.CELLS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        Run.build = sys.argv[2]
        unittest.main(argv=[sys.argv[0], "Run"])
    pure = ["Asked", "Periods", "Idle", "Cells", "Figures", "Doubts", "Aims", "Output"]
    unittest.main(argv=[*sys.argv, *([] if sys.argv[1:] else pure)])
