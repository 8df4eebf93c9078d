# SPDX-License-Identifier: Apache-2.0
"""The jobs of a chaos run as processes: starting, hurting, watching and cleaning them up. Signals go to processes of
the job only, whatever has become of their numbers. Draws no lots and judges no turns."""

import ctypes
import os
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from job import Job, Workload
from machine import monotonic_ns

MASK = (1 << 64) - 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Processes whose launcher was killed become ours, so that none outlives the run."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def stat_of(pid):
    """(parent, session) of a process, or None when it has gone or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[3]))


def went_ungated(lines):
    """Whether what a job said in its log says that a process went on without turns for a while, or for good."""
    return any("ungated" in line for line in lines)


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send(pid, session, number):
    """A signal to a process, if it still is one of that session. Whether it was sent."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = stat_of(pid)  # of the very process: its number cannot pass on while the handle is open
        if found is None or found[1] != session:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def mix(value):
    value = ((value ^ (value >> 31)) * 0x9E3779B97F4A7C15) & MASK
    return value ^ (value >> 29)


def expected_results(seed, ranks, iterations):
    """What chaos_job's ranks must come to (tests/chaos/chaos_math.hpp)."""
    values = [mix((seed * 0x2545F4914F6CDD1D + rank) & MASK) for rank in range(ranks)]
    for step in range(iterations):
        values = [mix((value + step) & MASK) for value in values]
        if ranks > 1:
            total = sum(values) & MASK
            values = [mix(value ^ total) for value in values]
    return values


@dataclass
class Stop:
    """A process that was stopped, in ns on CLOCK_MONOTONIC; not yet continued: end None."""

    pid: int
    start: int
    end: int = None


class ShortJob:
    """One run of chaos_job. `end` becomes "left", "killed", "lost", "wrong" or "hung"."""

    def __init__(self, machine, episode, folder):
        self.episode = episode
        self.name = episode.name
        self.machine = machine
        self.out = Path(folder) / f"{self.name}.out"
        self.log = Path(folder) / f"{self.name}.log"
        self.stops = []
        self.hurt = False  # a kill reached a rank
        self.launcher_killed = False
        self.end = None
        self.known_pids, self.said = [], []  # once it is over
        program = machine.build.folder / "tests" / "chaos" / "chaos_job"
        command = [str(program), "--ranks", str(episode.ranks), "--device", str(episode.device), "--iterations",
                   str(episode.iterations), "--compute-us", str(episode.compute_us), "--bytes", str(episode.bytes),
                   "--seed", str(episode.seed), "--ending", episode.ending, "--orphan-ms", str(episode.orphan_ms)]
        variables = {}
        if episode.namespace:
            command = ["unshare", "--pid", "--fork", *command]
            variables["CROSSOVER_JOB"] = self.name  # process ids there say nothing here
        environment = machine.environment(preload=True, **variables)
        self.start_ns = monotonic_ns()
        self.last_ns = None
        with open(self.out, "wb") as out, open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                                            start_new_session=True)

    @property
    def session(self):
        return self.process.pid

    def lines(self, word):
        text = self.out.read_text(encoding="ascii", errors="replace")
        return [line.split()[1:] for line in text.splitlines() if line.startswith(word + " ")]

    @property
    def pids(self):
        """Of the ranks, as far as they have told; an exec adds the new image's."""
        return [int(words[0]) for words in self.lines("pid")]

    @property
    def results(self):
        return {int(rank): int(value, 16) for rank, value in self.lines("result")}

    def members(self):
        """All processes of the job that are alive."""
        return [pid for pid in processes() if (found := stat_of(pid)) and found[1] == self.session]

    def targets(self, rank):
        if rank is None:
            return self.members()
        pids = self.pids
        return pids[rank:rank + 1]

    def act(self, act):
        """Carries it out; how many processes it reached. A stop has to be ended by cont()."""
        if act.what == "kill launcher":
            reached = send(self.process.pid, self.session, signal.SIGKILL)
            self.launcher_killed |= reached
            return int(reached)
        how = signal.SIGKILL if act.what == "kill" else signal.SIGSTOP
        reached = 0
        for pid in self.targets(act.rank):
            before = monotonic_ns()
            if send(pid, self.session, how):
                reached += 1
                if how == signal.SIGSTOP:
                    self.stops.append(Stop(pid, before))
        self.hurt |= act.what == "kill" and reached > 0
        return reached

    def cont(self):
        for stop in self.stops:
            if stop.end is None:
                send(stop.pid, self.session, signal.SIGCONT)
                stop.end = monotonic_ns()

    def kill(self):
        for _ in range(100):
            reached = [send(pid, self.session, signal.SIGKILL) for pid in self.members()]
            if not any(reached):
                break
        self.cont()

    def poll(self):
        """Sets `end` once the job is over by itself or was killed whole; orphans do not count."""
        if self.end is not None:
            return
        status = self.process.poll()
        results = self.results
        whole = len(results) == self.episode.ranks
        if whole:
            if status is None:
                return
            right = results == dict(enumerate(self.expected()))
            self.finish("left" if right else "wrong")
        elif status is not None and not (self.launcher_killed and any(map(self.alive, self.pids))):
            # Ranks that only just have been started may not have told their number yet.
            if not (self.launcher_killed and not self.hurt and self.members()):
                self.finish("killed" if self.hurt or (self.launcher_killed and not self.pids) else "lost")

    def alive(self, pid):
        found = stat_of(pid)
        return found is not None and found[1] == self.session

    def expected(self):
        return expected_results(self.episode.seed, self.episode.ranks, self.episode.iterations)

    def finish(self, end):
        self.end = end
        self.last_ns = monotonic_ns()

    def forget(self):
        """What is needed of its files is kept, and the files too if there is something to see in them."""
        self.known_pids = self.pids
        text = self.log.read_text(encoding="utf-8", errors="replace")
        self.said = [line for line in text.splitlines() if line.strip()]
        if self.end in ("left", "killed") and not self.said:
            self.out.unlink(missing_ok=True)
            self.log.unlink(missing_ok=True)


@dataclass(frozen=True)
class LongWorkload(Workload):
    """dp_train that tells of every iteration and does little but that."""

    device: int = -1

    def arguments(self):
        row = super().arguments() + ["--layers", "2", "--hidden", "16", "--log-every", "1", "--burn-kernel-ms", "100"]
        return row + (["--device", str(self.device)] if self.device >= 0 else [])


class LongJob:
    """A job that nobody harms, started anew whenever it is done."""

    def __init__(self, machine, name, workload, folder):
        self.machine, self.name, self.workload, self.folder = machine, name, workload, folder
        self.runs = []  # (pids, from ns, to ns, lines beside its losses)
        self.right = self.wrong = 0
        self.said = []
        self.reference = None
        self.job = None

    def begin(self):
        self.started_ns = monotonic_ns()
        self.seen = (0, self.started_ns)  # bytes of progress, and when they last grew
        run = f"{self.name}-{len(self.runs)}"
        self.job = Job(run, self.machine.build.program, self.workload, self.machine.environment(preload=True),
                       self.folder)

    def silent_s(self):
        size = (self.job.folder / "rank0.log").stat().st_size
        if size != self.seen[0]:
            self.seen = (size, monotonic_ns())
        return (monotonic_ns() - self.seen[1]) / 1e9

    def poll(self):
        """True when the present run is over. JobError when it failed, which must not be."""
        ends = [process.poll() for process in self.job.processes]
        if all(end is None for end in ends) or (None in ends and not any(ends)):
            return False
        result = self.job.wait(60)
        said = self.other_lines()
        self.said += said
        self.runs.append((result.pids, self.started_ns, monotonic_ns(), said))
        good = result.losses == self.reference
        self.right += good
        self.wrong += not good
        return True

    def other_lines(self):
        """Whatever a rank wrote beside its losses: the library's faults."""
        found = []
        for rank in range(self.workload.ranks):
            found += [line for line in self.job.log(rank).splitlines()
                      if line.strip() and not line.startswith(("iteration ", "rank "))]
        return found

    def stop(self):
        if self.job is not None:
            self.job.stop()


def solo_losses(machine, workload, folder):
    """The losses of a workload alone, without the library and without the waiting."""
    quick = replace(workload, compute_ms=0.0)
    with Job("solo", machine.build.program, quick, machine.environment(), folder) as job:
        return job.wait(300).losses


def reap_adopted(own):
    """Waits for orphans that have ended, and gives those that live; `own`: process ids that others wait for."""
    living = []
    for pid in processes():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) != os.getpid() or pid in own:
            continue
        try:
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                living.append(pid)
        except ChildProcessError:
            pass
    return living


def backtraces(pids):
    """Where these processes stand, by gdb, if it is there."""
    texts = []
    for pid in pids:
        command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt 12"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            kept = [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
            texts.append(f"process {pid}:\n" + "\n".join(kept))
        except (OSError, subprocess.TimeoutExpired) as error:
            texts.append(f"process {pid}: no backtrace ({error})")
    return "\n".join(texts)


