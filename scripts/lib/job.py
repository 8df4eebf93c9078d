# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a training job as its user would, waits for them, and reads what they report. Whether the library
is preloaded is the caller's choice of environment; nothing here knows a mode, a device model or a turn."""

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path


class JobError(RuntimeError):
    """A job that did not do its work; the text names it and the reason."""


@dataclass(frozen=True)
class Workload:
    """What dp_train is asked for; times in ms, sizes in MB. Asked is not measured."""

    compute_ms: float
    comm_mb: float
    iterations: int
    warmup: int = 3
    buckets: int = 1
    overlap: bool = False
    ranks: int = 2
    burn_per_ms: float = 0.0  # 0: the program calibrates itself, for which it has to be alone
    extra: tuple = ()  # arguments of the program's own, in front

    def arguments(self):
        row = [*self.extra, "--iterations", str(self.iterations), "--warmup", str(self.warmup)]
        row += ["--compute-ms", f"{self.compute_ms:g}"]
        row += ["--comm-mb", f"{self.comm_mb:g}", "--buckets", str(self.buckets)]
        row += ["--burn-per-ms", repr(self.burn_per_ms)] if self.burn_per_ms else []
        return row + (["--overlap"] if self.overlap else [])


@dataclass
class Result:
    """What rank 0 reported; times of the measured iterations only, in ns on CLOCK_MONOTONIC."""

    name: str
    pids: list
    losses: list  # of all iterations, warm-up included, as text
    burn_per_ms: float = 0.0
    late_ms: float = 0.0  # how long after the asked time the first iteration began
    starts: list = field(default_factory=list)  # of each measured iteration
    ends: list = field(default_factory=list)

    @property
    def window(self):
        return self.starts[0], self.ends[-1]

    @property
    def iteration_ms(self):
        return (self.ends[-1] - self.starts[0]) / 1e6 / len(self.starts)

    def period_ms(self, window):
        """Mean time of the iterations that lie wholly in the window."""
        inside = [(s, e) for s, e in zip(self.starts, self.ends) if s >= window[0] and e <= window[1]]
        if len(inside) < 3:
            raise JobError(f"job {self.name}: only {len(inside)} iterations in the time when all jobs ran")
        return (inside[-1][1] - inside[0][0]) / 1e6 / len(inside)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """All ranks of one run of a program; a context manager that leaves no process behind."""

    def __init__(self, name, program, workload, environment, folder, start_at_ns=None, rank_environment=None,
                 rank_prefix=None):
        """`rank_environment`, `rank_prefix`: by name and rank, what is added to a rank's environment, and the words to
        put in front of its command (which must not change its process id)."""
        self.name = name
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.report = self.folder / "report.json"
        self.report.unlink(missing_ok=True)
        self.start_at_ns = start_at_ns
        port = free_port()
        command = [str(program), *workload.arguments(), "--json", str(self.report)]
        if start_at_ns is not None:
            command += ["--start-at-ns", str(start_at_ns)]
        self.processes = []
        try:
            for rank in range(workload.ranks):
                own = dict(environment, RANK=str(rank), WORLD_SIZE=str(workload.ranks), LOCAL_RANK=str(rank),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                own.update(rank_environment(name, rank) if rank_environment else {})
                words = [*(rank_prefix(name, rank) if rank_prefix else ()), *command]
                with open(self.folder / f"rank{rank}.log", "wb") as log:
                    self.processes.append(subprocess.Popen(words, env=own, stdin=subprocess.DEVNULL, stdout=log,
                                                           stderr=subprocess.STDOUT))
        except OSError as error:
            self.stop()
            raise JobError(f"job {name}: cannot start {program}: {error.strerror}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pids(self):
        return [process.pid for process in self.processes]

    def stop(self, how=signal.SIGKILL):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(how)
        for process in self.processes:
            process.wait()

    def log(self, rank):
        return (self.folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout_s):
        """The job's result; JobError if a rank fails, or is not done after timeout_s (then the job is killed)."""
        end = time.monotonic() + timeout_s
        while (running := [p for p in self.processes if p.poll() is None]) and time.monotonic() < end:
            if any(p.returncode for p in self.processes):
                break  # the others would wait for it for ever
            time.sleep(0.02)
        if running and not any(p.returncode for p in self.processes):
            self.stop()
            raise JobError(f"job {self.name}: not done after {timeout_s:g} s; logs in {self.folder}")
        for rank, process in enumerate(self.processes):
            if process.returncode:
                last = (self.log(rank).strip().splitlines() or ["no output"])[-1]
                self.stop()
                raise JobError(f"job {self.name}: rank {rank} ended with {process.returncode}: {last}")
        return self.read()

    def read(self):
        try:
            report = json.loads(self.report.read_text(encoding="utf-8"))
            times = [int(round(ms * 1e6)) for ms in report["iteration_ms"]]
            losses, start, burn = report["losses"], report["measured_ns"], report["burn_per_ms"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobError(f"job {self.name}: no usable report in {self.report} ({error})") from None
        late = (report["start_ns"] - self.start_at_ns) / 1e6 if self.start_at_ns else 0.0
        result = Result(self.name, self.pids, losses, burn, late)
        for time_ns in times:
            result.starts.append(start)
            start += time_ns
            result.ends.append(start)
        return result


def clean_environment(**added):
    """This process's environment without anything that would change a job by accident."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(("CROSSOVER", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI", "SLURM_"))}
    kept.pop("LD_PRELOAD", None)
    kept.update(added)
    return kept
