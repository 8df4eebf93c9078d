# SPDX-License-Identifier: Apache-2.0
"""Checks of how the driver and the libraries find each other: pointers, look-ups through the preloaded library, what
the runtime holds while it launches, stream memory operations. No times."""

import importlib.machinery
import importlib.util
import subprocess

import vendor
from job import Job, Workload
from machine import REPOSITORY

from .runner import Skip, Wrong

LIBRARY = "libcrossover.so"


def pointers(context):
    """cuGetProcAddress's pointers are dlsym's; with the library preloaded both are its own for what it intercepts."""
    with context.machine("timeslice") as machine:
        bare = context.probe(machine, "loader")
        preloaded = context.probe(machine, "loader", preload=[context.kit.library])
    context.figures.save(bare=bare, preloaded=preloaded)
    ours = vendor.intercepted(context.kit.library)
    differing = [name for name, entry in bare["entries"].items() if not entry["same"]]
    wrong = [
        f"{name} is {entry[way]}'s"
        for name, entry in preloaded["entries"].items()
        for way in ("dlsym_owner", "get_proc_address_owner")
        if (entry[way] == LIBRARY) != (name in ours)
    ]
    if wrong:
        raise Wrong(f"preloaded, {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""))
    context.figures.save(differing=differing)
    told = f"differ for {', '.join(differing)}" if differing else "are dlsym's"
    return f"cuGetProcAddress's pointers {told}; preloaded, what is intercepted is ours"


def handshake_record():
    """Reads the observer's record as scripts/handshake does."""
    loader = importlib.machinery.SourceFileLoader("handshake", str(REPOSITORY / "scripts" / "handshake"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("handshake", loader))
    loader.exec_module(module)
    return module.Record


def by_library(path, rows):
    """{caller: [names of ours that it was given]} of an observer's record."""
    used = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        kind, *fields = line.split("\t")
        if kind == "look-up" and len(fields) == 8:
            _, symbol, _, _, real, owner, name, caller = fields
            if owner == LIBRARY and name in rows:
                used.setdefault(caller, set()).add(name)
    return {caller: sorted(names) for caller, names in sorted(used.items())}


def torch_under_observer(context, environment):
    """Lets PyTorch's own libraries look up what they use; their record is added to the job's."""
    text = (
        "import torch; x = torch.randn(2, 3, 32, 32, device='cuda'); w = torch.randn(8, 3, 3, 3, device='cuda'); "
        "y = torch.nn.functional.conv2d(x, w).flatten(1); print((y @ y.T).sum().item())"
    )
    try:
        done = subprocess.run(
            [context.python, "-c", text], env=environment, capture_output=True, text=True, timeout=40, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "ran" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def lookups(context):
    """Every look-up of an intercepted function that a whole training job makes ends at the library."""
    rows = vendor.intercepted(context.kit.library)
    with context.machine("timeslice") as machine:
        log = machine.folder / "lookups.log"
        environment = machine.environment(RECORDER_LOG=str(log))
        environment["LD_PRELOAD"] = f"{context.kit.observer}:{context.kit.library}"
        workload = Workload(compute_ms=2, comm_mb=0.1, iterations=3, warmup=1)
        with Job(
            "lookups",
            context.kit.program,
            workload,
            environment,
            machine.folder,
            rank_environment=machine.rank_environment,
        ) as job:
            job.wait(100)
        if not context.virtual:
            context.figures.save(
                torch=torch_under_observer(context, environment | {"LD_LIBRARY_PATH": context.users_path})
            )
        record = handshake_record()(log, rows, LIBRARY)
        used = by_library(log, rows)
    lost = dict(record.lost)
    context.figures.save(look_ups=record.look_ups, ours=record.wrapped, lost=lost, used=used)
    if not record.wrapped:
        raise Wrong("no look-up of an intercepted function was seen")
    if lost:
        raise Wrong(f"{sum(lost.values())} look-ups went past us: {', '.join(sorted(lost)[:3])}")
    return f"{record.look_ups} look-ups, {record.wrapped} of intercepted functions, all ours, by {', '.join(used)}"


def runtime_lock(context):
    """What other threads can do while one is held inside the driver's launch: if they cannot launch, a waiting launch
    would stop the program's other threads."""
    with context.machine("timeslice") as machine:
        found = context.probe(machine, "lock", preload=[context.kit.interposer])
    context.figures.save(**found)
    if not found["interposer"] or not found["a_launch_was_held"]:
        raise Wrong("no launch was held: the interposer does not stand in the runtime's way")
    blocked = [name for name, passes in found["passes"].items() if not passes]
    return (
        f"held inside a launch, others are stopped at: {blocked[0]}"
        if blocked
        else f"the runtime holds no lock in a launch: {', '.join(found['passes'])} pass"
    )


def memory_operations(context):
    """A stream that waits for a value in pinned memory, and what it costs to let it go."""
    with context.machine("timeslice") as machine:
        found = context.probe(machine, "memory_operations", limit_s=60)
    context.figures.save(**found)
    if not found["functions"]:
        raise Skip("this driver has no stream memory operations")
    if "wait_error" in found:
        raise Skip(f"the driver refuses to wait for a value: CUresult {found['wait_error']}")
    if not (found["held"] and found["released"]):
        raise Wrong(f"the stream was held: {found['held']}, released: {found['released']}")
    return f"a wait holds and lets go; {found['release_to_write_us']:.1f} us from the host's write to the stream's"
