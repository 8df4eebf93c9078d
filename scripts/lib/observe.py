# SPDX-License-Identifier: Apache-2.0
"""A job's C, M and E as the library itself infers them (`crossover status --json`), for devices that keep no truth log.
Polls from a thread while the job runs; changes nothing about the job."""

import json
import subprocess
import time

from intervals import Phases
from sampling import Sampler


class Observer(Sampler):
    """Around a job's run; phases() afterwards."""

    def __init__(self, machine):
        super().__init__()
        self.machine = machine
        self.samples = {}  # pid -> [(seconds, exposed_ms, communicated_ms)]
        self.error = None

    def sample(self):
        command = [str(self.machine.build.crossover), "status", "--json", "--dir", str(self.machine.shared_folder)]
        done = subprocess.run(command, env=self.machine.environment(), capture_output=True, text=True, timeout=30,
                              check=False)
        now = time.monotonic()
        try:
            for device in json.loads(done.stdout)["devices"]:
                for client in device["clients"]:
                    row = (now, client["exposed_ms"], client["communicated_ms"])
                    self.samples.setdefault(client["pid"], []).append(row)
        except (ValueError, KeyError, TypeError):
            self.error = f"crossover status ended with {done.returncode}: {done.stderr.strip()}"

    def phases(self, pids, window_ns, iteration_ms):
        """Mean C, M and E per iteration over the processes, from the samples inside the window; ValueError if too few."""
        shares = []
        for pid in pids:
            inside = [row for row in self.samples.get(pid, []) if window_ns[0] <= row[0] * 1e9 <= window_ns[1]]
            if len(inside) < 3:
                raise ValueError(f"only {len(inside)} samples of process {pid}; {self.error or 'it ran too short'}")
            first, last = inside[0], inside[-1]
            elapsed_ms = (last[0] - first[0]) * 1e3
            shares.append(((last[1] - first[1]) / elapsed_ms, (last[2] - first[2]) / elapsed_ms))
        exposed = sum(share[0] for share in shares) / len(shares) * iteration_ms
        communicate = sum(share[1] for share in shares) / len(shares) * iteration_ms
        return Phases(iteration_ms - exposed, communicate, exposed)
