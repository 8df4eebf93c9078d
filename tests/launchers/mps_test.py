#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""crossover-run --mps against a test double of nvidia-cuda-mps-control: the private daemon is started once, shared, and
ended behind its last user, however that ends. No GPU and no virtual GPU: what MPS does is not tested here."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ["CROSSOVER_BUILD"])
PRELOADED = BUILD / "arbiter" / "command" / "test_library" / "libcrossover.so"
STARTS, QUITS = "start", "quit"


def await_condition(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)


class Mps(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="cxmps-"))
        self.log = self.folder / "log"
        self.log.touch()
        self.shared = self.folder / "d"
        self.home = self.shared / f"mps-{os.getuid()}"
        self.pipe = self.home / "pipe"
        self.processes = []
        if Path("/tmp/nvidia-mps/control").exists():
            self.skipTest("an MPS daemon runs at the default place, /tmp/nvidia-mps")

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        try:
            self.await_end()
        finally:
            for line in self.log.read_text().splitlines():
                word = line.split()
                if word[0] == STARTS and self.is_ours(int(word[1])):
                    os.kill(int(word[1]), signal.SIGKILL)
            shutil.rmtree(self.folder)

    @staticmethod
    def is_ours(pid):
        try:
            return b"nvidia-cuda-mps-control" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def count(self, word):
        return sum(line.startswith(word) for line in self.log.read_text().splitlines())

    def daemons(self):
        return [int(line.split()[1]) for line in self.log.read_text().splitlines()
                if line.startswith(STARTS) and self.is_ours(int(line.split()[1]))]

    def keepers(self):
        return subprocess.run(["pgrep", "-f", f"mps-keep {self.home}"], capture_output=True, text=True,
                              check=False).stdout.split()

    def await_end(self):
        await_condition(lambda: not self.daemons() and not self.keepers(), "the end of daemon and keeper")

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("CROSSOVER", "SIMGPU", "CUDA_")) and name != "LD_PRELOAD"}
        kept.update(PATH=f"{HERE / 'fake_mps'}:{kept['PATH']}", FAKE_MPS_LOG=str(self.log),
                    CROSSOVER_DIR=str(self.shared), ASAN_OPTIONS="verify_asan_link_order=0", **more)
        return kept

    def start(self, *command, mps="on", **more):
        words = [BUILD / "bin" / "crossover", "run", f"--mps={mps}", "--library", PRELOADED, "--", *command]
        process = subprocess.Popen([str(word) for word in words], env=self.environment(**more), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def run_it(self, *command, **more):
        process = self.start(*command, **more)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    def running(self, **more):
        """A user that says when it runs and stays until its input ends."""
        process = self.start("sh", "-c", "echo up; read line", **more)
        self.assertEqual(process.stdout.readline(), "up\n", process.poll())
        return process

    def test_one_user(self):
        shown = "echo $CUDA_MPS_PIPE_DIRECTORY; echo $CUDA_MPS_LOG_DIRECTORY; exit 7"
        status, out, err = self.run_it("sh", "-c", shown, CUDA_VISIBLE_DEVICES="1", LD_PRELOAD=str(PRELOADED))
        self.assertEqual((status, out, err), (7, f"{self.pipe}\n{self.home / 'log'}\n", ""))
        self.await_end()
        self.assertEqual((self.count(STARTS), self.count(QUITS)), (1, 1))
        # It serves later jobs too: it sees all GPUs and has nothing of this job's.
        self.assertEqual(self.log.read_text().splitlines()[0].split()[2:], ["all"])
        self.assertEqual(self.home.stat().st_mode & 0o777, 0o700)

    def test_is_automatic(self):
        status, out, err = self.run_it("sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY", mps="auto")
        self.assertEqual((status, out, err), (0, f"{self.pipe}\n", ""))

    def test_off_starts_nothing(self):
        status, out, err = self.run_it("sh", "-c", "echo [$CUDA_MPS_PIPE_DIRECTORY]", mps="off")
        self.assertEqual((status, out, err, self.log.read_text()), (0, "[]\n", "", ""))

    def test_lasts_as_long_as_its_last_user(self):
        first, second = self.running(), self.running()
        first.communicate()
        time.sleep(0.5)  # nothing is to happen: a late end would be found below
        self.assertEqual((len(self.daemons()), self.count(QUITS)), (1, 0))
        third = self.running()
        second.communicate()
        third.communicate()
        self.await_end()
        self.assertEqual((self.count(STARTS), self.count(QUITS)), (1, 1))

    def test_ends_behind_killed_users(self):
        users = [self.running() for _ in range(3)]
        for user in users:
            user.kill()
            user.wait()
        self.await_end()
        self.assertEqual((self.count(STARTS), self.count(QUITS)), (1, 1))

    def test_stays_while_clients_are_connected(self):
        # A killed launcher's workers go on: they closed the descriptor, and the daemon knows them.
        worker = subprocess.Popen(["sleep", "3600"])
        self.processes.append(worker)
        user = self.running()
        (self.pipe / "clients").write_text(f"{worker.pid}\n")
        user.kill()
        user.wait()
        time.sleep(1.5)
        self.assertEqual((len(self.daemons()), self.count(QUITS)), (1, 0))
        self.running().communicate()
        self.assertEqual(self.count(STARTS), 1)
        worker.kill()
        worker.wait()
        self.await_end()
        self.assertIn("with 0 clients", self.log.read_text())

    def test_many_come_and_go_at_once(self):
        # Some are killed at any moment of their coming.
        dice = random.Random(4)
        for _ in range(3):
            users = [self.start("sh", "-c", "test -S $CUDA_MPS_PIPE_DIRECTORY/control") for _ in range(6)]
            killed = dice.sample(users, 2)
            for user in killed:
                time.sleep(dice.random() * 0.1)
                user.kill()
            for user in users:
                _, err = user.communicate(timeout=120)
                if user not in killed:
                    self.assertEqual((user.returncode, err), (0, ""), "a user without a daemon")
        self.await_end()
        self.assertEqual(self.count("refused"), 0, "two daemons were started at once")
        self.assertGreaterEqual(self.count(STARTS), 1)

    def test_a_killed_keeper_is_replaced(self):
        first = self.running()
        keeper, = self.keepers()
        os.kill(int(keeper), signal.SIGKILL)
        await_condition(lambda: not self.keepers(), "the keeper's end")
        second = self.running()
        self.assertEqual(len(self.keepers()), 1)
        first.communicate()
        second.communicate()
        self.await_end()
        self.assertEqual((self.count(STARTS), self.count(QUITS)), (1, 1))

    def test_a_killed_daemon_is_replaced(self):
        first = self.running()
        os.kill(self.daemons()[0], signal.SIGKILL)
        await_condition(lambda: not self.daemons(), "the daemon's end")
        second = self.running()
        self.assertEqual((len(self.daemons()), len(self.keepers())), (1, 1))
        first.communicate()
        second.communicate()
        self.await_end()

    def test_run_in_run_uses_the_same(self):
        words = [BUILD / "bin" / "crossover", "run", "--mps=on", "--library", PRELOADED, "--",
                 "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"]
        status, out, err = self.run_it(*words)
        self.assertEqual((status, out, err), (0, f"{self.pipe}\n", ""))
        self.await_end()
        self.assertEqual(self.count(STARTS), 1)

    def test_the_users_own_daemon_is_used(self):
        own = self.folder / "own"
        own.mkdir()
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(own)}
        control = str(HERE / "fake_mps" / "nvidia-cuda-mps-control")
        subprocess.run([control, "-d"], env=self.environment(**variables), check=True)
        await_condition((own / "control").exists, "the daemon")
        status, out, err = self.run_it("sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY", **variables)
        self.assertEqual((status, out, err), (0, f"{own}\n", ""))
        self.assertEqual((self.count(STARTS), self.count(QUITS)), (1, 0), "it is not ours to end")
        subprocess.run([control], input="quit\n", text=True, env=self.environment(**variables), check=True)

    def refused(self, reason, **more):
        status, out, err = self.run_it("echo", "started", mps="auto", **more)
        self.assertEqual((status, out), (0, "started\n"))
        self.assertTrue(err.startswith(f"crossover run: going on without MPS ({reason}"), err)
        self.assertEqual(err.count("\n"), 1)
        status, out, err = self.run_it("echo", "started", mps="on", **more)
        self.assertEqual((status, out), (2, ""))
        self.assertTrue(err.startswith(f"crossover run: --mps on: {reason}"), err)
        self.assertEqual(err.count("\n"), 1)

    def test_one_that_fails_to_start(self):
        self.refused("nvidia-cuda-mps-control -d fails: Failed to start: no device", FAKE_MPS="fail")

    def test_instances_of_a_divided_gpu(self):
        self.refused("a MIG instance needs", CUDA_VISIBLE_DEVICES="MIG-1a2b")

    def test_a_pipe_folder_without_a_daemon(self):
        self.refused("CUDA_MPS_PIPE_DIRECTORY is /no/such/folder", CUDA_MPS_PIPE_DIRECTORY="/no/such/folder")

    def test_a_folder_that_is_open_to_others(self):
        self.home.mkdir(parents=True)
        self.home.chmod(0o777)
        self.refused(f"{self.home} is no folder of this user's alone")

    def test_a_program_that_is_missing(self):
        original = shutil.which("nvidia-cuda-mps-control")
        if original:
            self.skipTest(f"it is installed here: {original}")
        bare = {"PATH": os.environ["PATH"]}
        self.environment = lambda **more: {**Mps.environment(self, **more), **bare}
        self.refused("nvidia-cuda-mps-control is not on PATH")


if __name__ == "__main__":
    unittest.main()
