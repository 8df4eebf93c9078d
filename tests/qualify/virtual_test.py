# SPDX-License-Identifier: Apache-2.0
"""Whole runs of scripts/gpu-qualify: on the virtual GPU, and as on a machine with a GPU (tools of NVIDIA's names that
do nothing, and the virtual GPU's libraries in place of CUDA's), so that the path that a real GPU takes is walked here
too. Usage: virtual_test.py BUILD [CASE]. Speeds are no test's business."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
QUALIFY = REPOSITORY / "scripts" / "gpu-qualify"
SIMGPU_RUN = REPOSITORY / "scripts" / "simgpu-run"
BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else REPOSITORY / "build" / "dev"
FAKE_SMI = """#!/bin/sh
case $* in
    *uuid*) sed -n "s/.*UUID: \\\\(GPU-[^)]*\\\\)).*/\\\\1/p" "$SIMGPU_DIR/devices" ;;
    *name,*) echo 'Pretended GPU, 1.0, 1 MiB, Default, N/A' ;;
    *) echo 'Pretended GPU' ;;
esac
"""
LIMIT_S = 400


class Runs(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="qt."))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.output = self.scratch / "report"

    def environment(self, **added):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CROSSOVER", "SIMGPU"))}
        kept["TMPDIR"] = str(self.scratch)  # so that what is left behind is seen
        return dict(kept, **added)

    def run_it(self, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, str(QUALIFY), *map(str, arguments)],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        self.told = done.stdout + done.stderr
        return done

    def report(self):
        found = json.loads((self.output / "report.json").read_text(encoding="utf-8"))
        return found, {row["name"]: row for row in found["checks"]}

    def nothing_left(self):
        """No machine and no folder of a check; and nothing in the report that names this machine's places."""
        for path in self.output.rglob("*"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                for place in (BUILD, REPOSITORY, self.scratch):
                    self.assertNotIn(str(place), text, path)
        self.assertEqual(list(self.scratch.glob("cxq.*")), [], self.told)

    def ok(self, checks, *names):
        for name in names:
            self.assertEqual(checks[name]["status"], "ok", checks[name])

    def look_at_figures(self, checks):
        entries = checks["loader.pointers"]["figures"]["preloaded"]["entries"]
        self.assertEqual(entries["cuLaunchKernel"]["get_proc_address_owner"], "libcrossover.so")
        times = checks["calibration.times"]["figures"]
        for name in (
            "launch_to_done_us",
            "event_record_to_done_us",
            "host_function_us",
            "to_device_gb_per_s",
        ):
            self.assertGreater(times[name], 0, name)
        # A difference of times, which a busy machine may make less than nothing.
        self.assertLess(times["gap_us"], times["launch_to_done_us"])
        losses = checks["correctness.losses"]["figures"]
        self.assertGreater(losses["losses"], 10)
        self.assertEqual({losses["bare"], losses["preloaded_alone"], *losses["in_turns"]}, {losses["bare"]})
        self.assertGreater(losses["together_ms"], 0)
        gain = checks["gain.turns"]["figures"]
        for name in ("c_ms", "m_ms", "e_ms", "bound_ms", "serial_ms"):
            self.assertGreater(gain[name], 0, name)
        for name, mode in gain["modes"].items():
            self.assertTrue(mode["losses_identical"], name)
            self.assertAlmostEqual(mode["speedup"], gain["serial_ms"] / mode["period_ms"], msg=name)
        self.assertIn("crossover", gain["modes"])
        self.assertGreater(gain["handovers"], 3)
        self.assertGreater(gain["handover_us"], 0)
        self.assertIn("MPS, in phase", gain["modes"])
        ns = checks["launch.driver"]["figures"]["ns"]
        for row in ns.values():
            self.assertGreater(row["bare"], 0)
            self.assertGreater(row["preloaded"], 0)
        self.assertTrue(checks["loader.runtime_lock"]["figures"]["a_launch_was_held"])
        memory = checks["loader.memory_operations"]["figures"]
        self.assertTrue(memory["held"] and memory["released"])
        self.assertEqual(checks["loader.lookups"]["figures"]["lost"], {})
        self.assertIn("libnccl.so.2", checks["loader.lookups"]["figures"]["used"])
        self.assertTrue(checks["correctness.killed"]["figures"]["all_ran_at_the_kill"])
        self.assertTrue(checks["correctness.abort"]["figures"]["beside_equal"])
        self.assertGreater(checks["calibration.nccl"]["figures"]["by_max_ctas"]["default"]["blocks"], 0)
        told = set(checks["correctness.patterns"]["figures"]["patterns"].values())
        self.assertTrue("equal" in told and all(word.startswith("equal") for word in told), told)

    NAMES = (
        "loader.pointers",
        "calibration.times",
        "calibration.mps",
        "correctness.losses",
        "gain.turns",
        "launch.driver",
        "loader.runtime_lock",
        "loader.memory_operations",
        "loader.lookups",
        "correctness.killed",
        "correctness.abort",
        "calibration.slices",
        "calibration.nccl",
        "correctness.patterns",
        "correctness.stream_gate",
    )

    def test_virtual(self):
        done = self.run_it("--virtual", "--minutes", 2.9, "--build", BUILD, "--output", self.output)
        self.assertEqual(done.returncode, 0, self.told)
        report, checks = self.report()
        self.assertTrue(report["virtual"])
        self.ok(checks, *self.NAMES, "launch.stub")
        self.look_at_figures(checks)
        # The server's own parameters, found again by the probes.
        self.assertAlmostEqual(checks["calibration.slices"]["figures"]["slice_us"], 2000, delta=300)
        self.assertIn(checks["pytorch.compiled"]["status"], ("skipped",))
        self.assertNotEqual(checks["pytorch.training"]["summary"], "")
        for row in report["checks"]:
            self.assertIn(row["name"], done.stdout)
            self.assertNotEqual(row["summary"], "", row)
        for name in ("report.md", "calibration.md", "simgpu.environment", "timeline.html", "timeline.json"):
            self.assertGreater((self.output / name).stat().st_size, 0, name)
        self.nothing_left()
        # What was measured is accepted by the virtual GPU.
        words = (self.output / "simgpu.options").read_text(encoding="utf-8").split()
        self.assertIn("--slice-us", words)
        started = subprocess.run(
            [str(SIMGPU_RUN), *words, "--", "true"],
            env=self.environment(SIMGPU_BUILD=str(BUILD)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(started.returncode, 0, started.stderr)

    def test_as_on_a_gpu(self):
        tools, machine = self.scratch / "tools", self.scratch / "m"
        tools.mkdir()
        for name, text in (("nvidia-smi", FAKE_SMI), ("nvidia-cuda-mps-control", "#!/bin/sh\nexec cat >/dev/null\n")):
            (tools / name).write_text(text, encoding="utf-8")
            (tools / name).chmod(0o755)
        started = subprocess.run(
            [str(SIMGPU_RUN), "--background", "--dir", str(machine), "--devices", "1", "--link-gbps", "1"],
            env=self.environment(SIMGPU_BUILD=str(BUILD)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        self.assertEqual(started.returncode, 0)
        self.addCleanup(
            subprocess.run,
            [str(SIMGPU_RUN), "--stop", str(machine)],
            timeout=60,
            check=False,
            env=self.environment(SIMGPU_BUILD=str(BUILD)),
            stderr=subprocess.DEVNULL,
        )
        done = self.run_it(
            "--minutes",
            2.9,
            "--build",
            BUILD,
            "--output",
            self.output,
            "--libraries",
            BUILD / "tests" / "simgpu" / "lib",
            PATH=f"{tools}:{os.environ['PATH']}",
            SIMGPU_DIR=str(machine),
        )
        self.assertEqual(done.returncode, 0, self.told)
        report, checks = self.report()
        self.assertFalse(report["virtual"])
        self.assertEqual(report["device"], "Pretended GPU")
        self.ok(checks, *self.NAMES)
        self.look_at_figures(checks)
        self.assertEqual(checks["pytorch.training"]["status"], "skipped")
        self.assertGreater((self.output / "timeline.html").stat().st_size, 0)
        self.nothing_left()

    def test_prepared_folder_stands_alone(self):
        made, moved = self.scratch / "made", self.scratch / "elsewhere" / "kit"
        done = self.run_it("--prepare", made, "--build", BUILD)
        self.assertEqual(done.returncode, 0, self.told)
        moved.parent.mkdir()
        made.rename(moved)
        files = [path for path in moved.rglob("*") if path.is_file()]
        self.assertLess(sum(path.stat().st_size for path in files), 64 << 20)
        for path in files:
            listing = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
            self.assertNotIn("RPATH", listing, path)
            self.assertNotIn("RUNPATH", listing, path)
        done = self.run_it(
            "--virtual",
            "--minutes",
            1,
            "--build",
            moved,
            "--output",
            self.output,
            "--only",
            "loader",
            "--only",
            "correctness.losses",
            "--only",
            "launch.stub",
        )
        self.assertEqual(done.returncode, 0, self.told)
        _, checks = self.report()
        self.ok(checks, "loader.pointers", "loader.lookups", "loader.runtime_lock", "correctness.losses", "launch.stub")

    def test_interrupted_leaves_a_report(self):
        command = [
            sys.executable,
            str(QUALIFY),
            "--virtual",
            "--build",
            str(BUILD),
            "--output",
            str(self.output),
            "--only",
            "calibration.times",
            "--only",
            "gain.turns",
            "--only",
            "correctness.losses",
        ]
        process = subprocess.Popen(
            command,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.kill)
        end = time.monotonic() + 120
        for line in process.stdout:
            if line.startswith("gain.turns") or time.monotonic() > end:
                break
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        self.told, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, self.told)
        _, checks = self.report()
        self.ok(checks, "calibration.times", "correctness.losses")
        self.assertEqual(checks["gain.turns"]["status"], "not run")
        self.assertEqual(checks["gain.turns"]["summary"], "interrupted")
        self.nothing_left()

    def test_manners(self):
        none = self.scratch / "none"
        for arguments, words in (
            (["--minutes", "0"], ["--minutes", "'0'"]),
            (["--frob"], ["--frob"]),
            (["--only", "speed"], ["speed", "gain.turns"]),
            (["--build", none, "--virtual"], ["none", "lacks"]),
            (["--libraries", none], ["--libraries"]),
        ):
            done = self.run_it(*arguments)
            self.assertEqual(done.returncode, 2, self.told)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, self.told)
            for word in words:
                self.assertIn(word, done.stderr)
        full = self.scratch / "full"
        full.mkdir()
        (full / "something").touch()
        done = self.run_it("--virtual", "--build", BUILD, "--output", full)
        self.assertEqual(done.returncode, 2, self.told)
        self.assertTrue((full / "something").exists())
        if shutil.which("nvidia-smi") is None:
            done = self.run_it()
            self.assertEqual(done.returncode, 77, self.told)
            self.assertIn("no GPU", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
