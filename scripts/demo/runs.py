# SPDX-License-Identifier: Apache-2.0
"""Runs one setting of the demo in all modes and turns what the jobs and the truth log report into figures. It prints
nothing and asserts nothing; what is asked of a figure stands in the README and the end-to-end benchmark."""

from dataclasses import dataclass, field, replace

from intervals import bound
from job import Job, Workload
from machine import GpuMachine, VirtualMachine
from observe import Observer
from together import Start, measured_phases, run_together, shared_window

RUN_LIMIT_S = 120
LEAD_S = 1.5


@dataclass(frozen=True)
class Setting:
    name: str
    title: str
    workload: Workload
    shared_link: bool
    link_gbps: float = 1.0
    comm_ms: float = 20.0  # communication asked for; on the virtual GPU comm_mb and link_gbps say the same


@dataclass
class Measured:
    """One mode; period_ms is the mean time of one iteration of each job while both run."""

    period_ms: float
    rates: list  # iterations per second of each job
    losses_identical: bool
    offset_ms: float = 0.0
    late_ms: float = 0.0  # the most that a job's first iteration began after the time it was asked for


@dataclass
class Outcome:
    setting: Setting
    solo: dict = field(default_factory=dict)  # job name -> Phases
    solo_ms: dict = field(default_factory=dict)  # job name -> iteration time alone
    modes: dict = field(default_factory=dict)  # mode -> Measured

    @property
    def serial_ms(self):
        return sum(self.solo_ms.values())

    @property
    def bound_ms(self):
        return bound(list(self.solo.values()), self.setting.shared_link)


class Bench:
    """Makes machines and runs jobs on them."""

    JOBS = ("A", "B")

    def __init__(self, build, keep, gpus):
        """`keep`: folder for the logs of all runs, or None."""
        self.build, self.keep, self.gpus = build, keep, gpus

    def machine(self, setting, sharing, label):
        keep = self.keep / label if self.keep else None
        if self.gpus:
            return GpuMachine(self.build, sharing, len(self.gpus), self.gpus[0], keep=keep)
        options = ["--devices", setting.workload.ranks, "--sharing", sharing, "--link-gbps", f"{setting.link_gbps:g}"]
        options += ["--shared-link"] if setting.shared_link else []
        return VirtualMachine(self.build, options, keep=keep)

    def solo(self, setting, name):
        """A job alone: (Result, Phases). Phases come from the truth log, on a real GPU from the library's own inference in
        a second run, so that the first stays without it."""
        with self.machine(setting, "mps", f"{setting.name}-solo-{name}") as machine:
            with self.start(machine, setting, name, preload=False) as job:
                result = job.wait(RUN_LIMIT_S)
            if machine.virtual:
                return result, measured_phases(machine, result)
            with Observer(machine) as observer:
                with self.start(machine, setting, name, preload=True, CROSSOVER="observe") as job:
                    observed = job.wait(RUN_LIMIT_S)
            return result, observer.phases(observed.pids, observed.window, observed.iteration_ms)

    def start(self, machine, setting, name, preload, **variables):
        return Job(name, self.build.program, setting.workload, machine.environment(preload, **variables), machine.folder,
                   rank_environment=machine.rank_environment)

    def pair(self, setting, sharing, label, reference, preload=False, offset_ms=0.0, timeline=None):
        """Both jobs at once, B started offset_ms after A."""
        with self.machine(setting, sharing, label) as machine:
            starts = [Start(name, self.build.program, setting.workload, delay_ms)
                      for name, delay_ms in zip(self.JOBS, (0.0, offset_ms))]
            results = run_together(machine, starts, LEAD_S, RUN_LIMIT_S, preload, timeline)
        window = shared_window(results)
        periods = [r.period_ms(window) for r in results]
        same = all(r.losses == reference[r.name] for r in results)
        return Measured(sum(periods) / len(periods), [1e3 / p for p in periods], same, offset_ms,
                        max(r.late_ms for r in results))


def fitted(bench, setting):
    """The setting with as many bytes to all-reduce as take comm_ms here; a virtual link has its speed by choice."""
    if not bench.gpus:
        return setting
    trial = replace(setting, workload=replace(setting.workload, comm_mb=64.0))
    _, found = bench.solo(trial, bench.JOBS[0])
    return replace(setting, workload=replace(setting.workload, comm_mb=64.0 * setting.comm_ms / found.communicate))


def measure(bench, setting, timeline, progress):
    """All modes of a setting. `timeline` is the prefix for the trace of the crossover run, or None."""
    setting = fitted(bench, setting)
    outcome, reference = Outcome(setting), {}
    for name in bench.JOBS:
        progress(f"job {name} alone")
        result, outcome.solo[name] = bench.solo(setting, name)
        outcome.solo_ms[name] = result.iteration_ms
        reference[name] = result.losses
        # Beside another job, or for another machine, the program would find another amount of work in a millisecond.
        setting = replace(setting, workload=replace(setting.workload, burn_per_ms=result.burn_per_ms))
    progress("both, uncoordinated, time-sliced")
    outcome.modes["timeslice"] = bench.pair(setting, "timeslice", f"{setting.name}-timeslice", reference)

    period, offsets = outcome.serial_ms / len(bench.JOBS), 5
    runs = []
    for k in range(offsets):
        offset = k * period / offsets
        progress(f"both, uncoordinated, MPS, {offset:.0f} ms apart")
        runs.append(bench.pair(setting, "mps", f"{setting.name}-mps-{k}", reference, offset_ms=offset))
    outcome.modes["mps_in_phase"] = runs[0]
    outcome.modes["mps_best"] = min(runs, key=lambda run: run.period_ms)
    mean = sum(run.period_ms for run in runs) / len(runs)
    rates = [sum(column) / len(runs) for column in zip(*(run.rates for run in runs))]
    outcome.modes["mps_mean"] = Measured(mean, rates, all(run.losses_identical for run in runs))
    outcome.modes["mps_worst"] = max(runs, key=lambda run: run.period_ms)

    progress("both, with Crossover")
    outcome.modes["crossover"] = bench.pair(setting, "mps", f"{setting.name}-crossover", reference, preload=True,
                                            timeline=timeline)
    return outcome
