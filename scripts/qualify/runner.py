# SPDX-License-Identifier: Apache-2.0
"""Runs checks one after the other: each in a process group of its own, under its own limit and what is left of the
whole time, so that none ends or outlives the others. Knows no check and no figure."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

OK, FAILED, SKIPPED, TIMED_OUT, CUT, NOT_RUN = "ok", "failed", "skipped", "timed out", "cut short", "not run"
GRACE_S = 10.0  # for a check that is ended, to take down what it started
LEAST_S = 3.0  # with less left no check begins
LARGEST_PART = 0.5  # of the whole time that one check may take


class Skip(Exception):
    """Nothing to check here; the text says why."""


class Wrong(Exception):
    """The check's answer is no; the text says what was expected and what was seen."""


@dataclass(frozen=True)
class Check:
    name: str  # family.what
    function: Callable  # (context): puts figures into context.figures, returns one line; raises Skip or Wrong
    limit_s: float


@dataclass
class Result:
    name: str
    status: str
    seconds: float = 0.0
    summary: str = ""
    figures: dict = field(default_factory=dict)


class Figures(dict):
    """What a check has found so far; save() keeps it even if the check is ended later."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def save(self, **more):
        self.update(more)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self), encoding="utf-8")
        part.replace(self.path)


class Interrupted(BaseException):
    """The check has to end now."""


def end_now(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted


def body(check, context, outcome):
    """In the child: never returns."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when
    status, summary = FAILED, ""
    try:
        with open(context.log, "w", encoding="utf-8", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                status, summary = OK, check.function(context) or ""
            except Skip as reason:
                status, summary = SKIPPED, str(reason)
            except Wrong as reason:
                summary = str(reason)
            except Exception as error:  # a check's fault is its result
                traceback.print_exc()
                summary = f"{type(error).__name__}: {error}"
            sys.stdout.flush()
        context.figures.save()
        outcome.write_text(json.dumps([status, summary]), encoding="utf-8")
    except BaseException:  # ended from outside: what stands in the files stands
        pass
    finally:
        os._exit(0)


def group_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(child):
    """First the check's own process, which takes down what it started; then whatever is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    while not reaped(child) and time.monotonic() < end:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def reaped(child):
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


def sweep(folder, simgpu_run):
    """Ends the machines and private MPS daemons that a killed check left, by their folders, then removes these."""
    for lock in folder.glob("*/machine/server.lock"):
        subprocess.run(
            [str(simgpu_run), "--stop", str(lock.parent)],
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    for pipe in folder.glob("*/mps"):
        if (pipe / "control").exists():
            own = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(pipe), CUDA_MPS_LOG_DIRECTORY=str(pipe))
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["nvidia-cuda-mps-control"],
                    input="quit\n",
                    env=own,
                    text=True,
                    timeout=20,
                    check=False,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
    shutil.rmtree(folder, ignore_errors=True)


def run_check(check, context, limit_s, simgpu_run):
    """One check; KeyboardInterrupt passes after everything of it has ended."""
    # Short: a machine's socket lies in it, and its path has room for 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="cxq."))
    outcome, figures_path = scratch / "outcome", scratch / "figures.json"
    context.figures = Figures(figures_path)
    begin = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        body(check, context, outcome)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    ended = interrupted = False
    try:
        while not (ended := reaped(child)) and time.monotonic() - begin < limit_s:
            time.sleep(0.02)
    except KeyboardInterrupt:
        interrupted = True
    if not ended:
        end_group(child)
    elif group_alive(child):  # nothing of a check outlives it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    result = Result(check.name, FAILED, summary="the check's process died")
    try:
        result.figures = json.loads(figures_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    try:
        result.status, result.summary = json.loads(outcome.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        if interrupted:
            result.status, result.summary = NOT_RUN, "interrupted"
        elif not ended:
            own = limit_s >= check.limit_s
            result.status = TIMED_OUT if own else CUT
            result.summary = (
                f"not done after {limit_s:.0f} s"
                + ("" if own else ", all that --minutes leaves it")
                + "; figures are what there was by then"
            )
    result.seconds = time.monotonic() - begin
    sweep(scratch, simgpu_run)
    return result, interrupted


def run_all(checks, make_context, budget_s, simgpu_run, on_result):
    """Results of all checks in order; on_result(results, running) is called before and after each. A check that has no
    time left, or comes after an interruption, is not run, and says so. Second value: whether there was one."""
    end = time.monotonic() + budget_s
    results, interrupted = [], False
    for check in checks:
        left = end - time.monotonic()
        if interrupted:
            results.append(Result(check.name, NOT_RUN, summary="interrupted"))
        elif left < LEAST_S:
            results.append(Result(check.name, NOT_RUN, summary="no time left (--minutes)"))
        else:
            try:
                on_result(results, check)
                context = make_context(check, results)
                result, interrupted = run_check(
                    check, context, min(check.limit_s, left, LARGEST_PART * budget_s), simgpu_run
                )
            except KeyboardInterrupt:
                result, interrupted = Result(check.name, NOT_RUN, summary="interrupted"), True
            results.append(result)
        on_result(results, None)
    return results, interrupted
