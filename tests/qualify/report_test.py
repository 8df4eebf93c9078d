# SPDX-License-Identifier: Apache-2.0
"""Unit tests of scripts/gpu-qualify's pure parts on recorded data: what becomes of a report, how checks are ended, what
is read out of the probes' rows. Starts no machine."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "lib")]

from qualify import calibrate, calibration, correctness, gain, loader, pytorch, report  # noqa: E402
from qualify.runner import Check, Result, Skip, Wrong, run_all  # noqa: E402

RECORDED = Path(__file__).with_name("recorded_report.json")


def recorded():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


class Calibration(unittest.TestCase):
    def test_parameters_of_a_recorded_report(self):
        row = {p.name: p.value for p in calibrate.parameters(recorded())}
        self.assertEqual(
            row,
            {
                "--slice-us": "1813",
                "--context-switch-us": "41.3",
                "--launch-us": "6.2",
                "--gap-us": "0.92",
                "--copy-engines": "3",
                "--link-gbps": "16",
                "--latency-us": "48.1",
                "SIMGPU_NCCL_SM_SHARE": "0.1818",
            },
        )

    def test_options_and_environment_are_apart(self):
        row = calibrate.parameters(recorded())
        words = calibrate.options(row)
        self.assertEqual(words[:2], ["--slice-us", "1813"])
        self.assertEqual(len(words), 14)
        self.assertEqual(calibrate.environment(row), ["SIMGPU_NCCL_SM_SHARE=0.1818"])

    def test_what_failed_or_was_not_run_gives_nothing(self):
        found = recorded()
        for check in found["checks"]:
            if check["name"] in ("calibration.slices", "calibration.nccl"):
                check["status"] = "timed out"
        self.assertEqual([p.name for p in calibrate.parameters(found)], ["--launch-us", "--gap-us", "--copy-engines"])
        found["checks"] = []
        self.assertEqual(calibrate.parameters(found), [])

    def test_no_bandwidth_from_noise(self):
        points = [{"bytes": 4, "ms": 0.05}, {"bytes": 1000, "ms": 2.0}, {"bytes": 2000, "ms": 1.9}]
        self.assertEqual(calibration.link(points), (50.0, None))
        points = [{"bytes": 4, "ms": 0.05}, {"bytes": 1_000_000, "ms": 1.0}, {"bytes": 3_000_000, "ms": 2.0}]
        self.assertAlmostEqual(calibration.link(points)[1], 16.0)

    def test_numbers_have_no_exponent(self):
        self.assertEqual(
            [calibrate.number(v) for v in (0.00001, 0.9200, 12.34, 1812.5, 2_000_000.0)],
            ["0", "0.92", "12.3", "1812", "2000000"],
        )

    def run_script(self, *arguments):
        return subprocess.run(
            [sys.executable, str(SCRIPTS / "qualify" / "calibrate.py"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def test_writes_between_the_marks_only_what_a_gpu_gave(self):
        with tempfile.TemporaryDirectory() as folder:
            page, virtual = Path(folder) / "page.md", Path(folder) / "virtual.json"
            page.write_text(f"before\n{calibrate.BEGIN}old\n{calibrate.END}\nafter\n", encoding="utf-8")
            done = self.run_script(RECORDED, "--write", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = page.read_text(encoding="utf-8")
            self.assertTrue(text.startswith("before\n") and text.endswith("\nafter\n"))
            self.assertIn("| `--slice-us` | 1813 | us |", text)
            self.assertNotIn("old", text)
            virtual.write_text(json.dumps(recorded() | {"virtual": True}), encoding="utf-8")
            done = self.run_script(virtual, "--write", page)
            self.assertEqual(done.returncode, 2)
            self.assertIn("virtual", done.stderr)
            self.assertEqual(page.read_text(encoding="utf-8"), text)

    def test_the_page_has_the_marks(self):
        text = (REPOSITORY / "docs" / "calibration.md").read_text(encoding="utf-8")
        self.assertLess(text.index(calibrate.BEGIN), text.index(calibrate.END))

    def test_bad_report(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as bad:
            bad.write("{}")
            bad.flush()
            done = self.run_script(bad.name)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)


class Slices(unittest.TestCase):
    def test_two_processes_in_turns(self):
        # Ten kernels of 0.2 ms, then the other's 2 ms: a slice of 2 ms each.
        row = ([0.2] * 9 + [2.2]) * 5
        found = calibration.slice_figures([row, row], 0.2, wall_ms=22.0)
        self.assertAlmostEqual(found["slice_us"], 2000)
        self.assertEqual(found["times_taken_away"], [5, 5])
        self.assertAlmostEqual(found["share_of_wall_spent_working"], 20 / 22)
        self.assertAlmostEqual(found["switch_us"], 200)

    def test_side_by_side(self):
        row = [0.4] * 50
        found = calibration.slice_figures([row, row], 0.2, wall_ms=20.0)
        self.assertNotIn("slice_us", found)
        self.assertEqual(found["times_taken_away"], [0, 0])

    def test_kernels_of_nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "kernels"
            self.assertEqual(calibration.footprint(log), [])
            log.write_text(
                "24\t512\t0\tncclDevKernel_AllReduce\n2\t96\t0\tncclDevKernel_Broadcast\n"
                "24\t512\t0\tncclDevKernel_AllReduce\n",
                encoding="utf-8",
            )
            self.assertEqual(
                calibration.footprint(log), [(2, 96, "ncclDevKernel_Broadcast"), (24, 512, "ncclDevKernel_AllReduce")]
            )


class HandOvers(unittest.TestCase):
    def test_from_the_turn_to_the_first_compute_of_its_job(self):
        names = {1: "whose turn", 2: "job A: compute", 3: "job B: compute", 4: "job B: has the turn"}
        events = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
            for tid, name in names.items()
        ]
        for tid, name, begin, length in (
            (1, "job A", 0, 100),
            (1, "job B", 100, 50),
            (1, "job B", 150, 50),  # its own again: no hand-over
            (1, "job A", 200, 50),
            (1, "job B", 250, 50),  # without compute
            (2, "compute", 5, 90),
            (3, "compute", 112, 30),
            (3, "compute", 145, 3),
            (2, "compute", 207, 10),
            (4, "turn", 100, 50),
        ):
            events.append({"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": begin, "dur": length})
        self.assertEqual(gain.handovers({"traceEvents": events}), [12, 7])


class LookUps(unittest.TestCase):
    def test_who_was_given_what(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "record"
            line = "look-up\tcuGetProcAddress_v2\t{0}\t12000\t0\t{0}\t{1}\t{0}\t{2}\n"
            log.write_text(
                line.format("cuLaunchKernel", "libcrossover.so", "libcudart.so.13")
                + line.format("cuLaunchKernelEx", "libcrossover.so", "libnccl.so.2")
                + line.format("cuMemAlloc", "libcuda.so.1", "libnccl.so.2")
                + "call\tcuInit\tlibnccl.so.2\n",
                encoding="utf-8",
            )
            self.assertEqual(
                loader.by_library(log, {"cuLaunchKernel", "cuLaunchKernelEx"}),
                {"libcudart.so.13": ["cuLaunchKernel"], "libnccl.so.2": ["cuLaunchKernelEx"]},
            )


class Reports(unittest.TestCase):
    def results(self):
        return [
            Result(row["name"], row["status"], row["seconds"], row["summary"], row["figures"])
            for row in recorded()["checks"]
        ]

    def header(self):
        return {name: value for name, value in recorded().items() if name not in ("checks", "format")}

    def test_json_is_what_was_recorded(self):
        self.assertEqual(report.as_json(self.header(), self.results()), recorded())

    def test_every_check_stands_in_the_table_and_the_page(self):
        for text in (report.terminal(self.results(), 100), report.markdown(self.header(), self.results())):
            for result in self.results():
                self.assertIn(result.name, text)
        for line in report.terminal(self.results(), 100).splitlines():
            self.assertLessEqual(len(line), 100)

    def test_the_page_says_when_it_is_of_the_virtual_gpu(self):
        self.assertNotIn("virtual GPU", report.markdown(self.header(), self.results()))
        self.assertIn("figures are not a GPU's", report.markdown(self.header() | {"virtual": True}, self.results()))

    def test_gain_and_launch_tables(self):
        page = report.markdown(self.header(), self.results())
        self.assertIn("| crossover | 81.0 | 1.48 | 0.988 | yes |", page)
        self.assertIn("| cuLaunchKernel | 2100 | 2104 | 4 |", page)


class Verdicts(unittest.TestCase):
    def test_patterns(self):
        equal, apart = correctness.EQUAL, correctness.APART
        self.assertIn("2 patterns", correctness.judged({"a": equal, "b": apart}))
        self.assertIn("of b the two jobs missed", correctness.judged({"a": equal, "b": apart}))
        for found in ({"a": equal, "b": "losses differ"}, {"a": apart}, {"a": equal, "b": "not done after 60 s"}):
            with self.assertRaises(Wrong):
                correctness.judged(found)

    def model(self, crossover=True, uncoordinated=True, changed=True):
        return {
            "net": {
                "alone_ms": 10.0,
                "changed": changed,
                "crossover": {"speedup": 1.4, "losses_identical": crossover},
                "uncoordinated": {"speedup": 1.1, "losses_identical": uncoordinated},
            }
        }

    def test_training(self):
        class OnGpu:
            virtual = False

        self.assertIn("losses equal", pytorch.verdict(OnGpu, self.model()))
        neither = self.model(crossover=False, uncoordinated=False)
        self.assertIn("even without the library", pytorch.verdict(OnGpu, neither))
        for found in (self.model(crossover=False), self.model(changed=False), {"net": {"error": "ended with 1"}}):
            with self.assertRaises(Wrong):
                pytorch.verdict(OnGpu, found)

    def test_places_are_taken_out_of_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "a.log"
            log.write_text("+ /home/me/checkout/build/q/probe /tmp/cxq.ab12_c/x /home/me/other\n", encoding="utf-8")
            report.take_out(Path(folder), {"/home/me": "HOME", "/home/me/checkout": "CHECKOUT", "/": "ROOT"})
            self.assertEqual(log.read_text(encoding="utf-8"), "+ CHECKOUT/build/q/probe SCRATCH/x HOME/other\n")


def sleeper(context):
    """A check that does not end, nor does what it started."""
    child = subprocess.Popen(["sleep", "1000"])
    context.figures.save(child=child.pid)
    time.sleep(1000)


def stubborn(context):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeper(context)


def leaver(context):
    context.figures.save(child=subprocess.Popen(["sleep", "1000"]).pid)
    return "left a process"


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def skip(_):
    raise Skip("not here")


def wrong(_):
    raise Wrong("it differs")


def broken(_):
    raise KeyError("oops")


def dies(_):
    os.kill(os.getpid(), signal.SIGKILL)


class Fake:
    """As much of a context as the runner uses."""

    def __init__(self, folder, check):
        self.log, self.figures = Path(folder) / f"{check.name}.log", None


class Runner(unittest.TestCase):
    def run_checks(self, *checks, budget_s=100.0):
        seen = []
        with tempfile.TemporaryDirectory() as folder:
            results, interrupted = run_all(
                checks,
                lambda check, _: Fake(folder, check),
                budget_s,
                "/bin/true",
                lambda results, running: seen.append((len(results), running)),
            )
        self.assertEqual(seen[-1], (len(checks), None))
        return results, interrupted

    def gone(self, pid):
        end = time.monotonic() + 20
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(alive(pid))

    def test_no_check_ends_the_others(self):
        fine = Check("a.fine", lambda context: context.figures.save(seven=7) or "fine", 60)
        results, interrupted = self.run_checks(
            Check("a.wrong", wrong, 60),
            Check("a.broken", broken, 60),
            Check("a.dies", dies, 60),
            Check("a.skip", skip, 60),
            fine,
        )
        self.assertEqual([r.status for r in results], ["failed", "failed", "failed", "skipped", "ok"])
        self.assertEqual(
            [r.summary for r in results],
            ["it differs", "KeyError: 'oops'", "the check's process died", "not here", "fine"],
        )
        self.assertEqual(results[-1].figures, {"seven": 7})
        self.assertFalse(interrupted)

    def test_a_check_over_its_limit_is_ended_with_what_it_started(self):
        results, _ = self.run_checks(Check("a.sleeper", sleeper, 1), Check("a.fine", lambda _: "fine", 60))
        self.assertEqual([r.status for r in results], ["timed out", "ok"])
        self.gone(results[0].figures["child"])

    def test_a_check_that_does_not_listen_is_killed(self):
        with contextlib.redirect_stdout(io.StringIO()):
            results, _ = self.run_checks(Check("a.stubborn", stubborn, 1))
        self.assertEqual(results[0].status, "timed out")
        self.gone(results[0].figures["child"])

    def test_nothing_outlives_its_check(self):
        results, _ = self.run_checks(Check("a.leaver", leaver, 60))
        self.assertEqual(results[0].status, "ok")
        self.gone(results[0].figures["child"])

    def test_the_time_for_all_cuts_one_short_and_leaves_the_rest(self):
        results, _ = self.run_checks(
            Check("a.sleeper", sleeper, 60), Check("a.late", lambda _: "late", 60), budget_s=4.0
        )
        self.assertEqual([r.status for r in results], ["cut short", "not run"])
        self.assertIn("--minutes", results[0].summary)
        self.assertIn("--minutes", results[1].summary)


if __name__ == "__main__":
    unittest.main(verbosity=2)
