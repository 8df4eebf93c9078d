# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/gpu-qualify: which checks in which order, on what, for how long, and where the report
goes."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from machine import REPOSITORY, MachineError, Parser, fail, find_gpus

from . import calibrate, calibration, correctness, gain, loader, pytorch, report
from .context import SIMGPU_RUN, Context
from .kit import cannot_start, describe_machine, first_gpu, obtain, prepare, set_library_path
from .runner import FAILED, TIMED_OUT, Check, run_all

NO_GPU = 77
INTERRUPTED = 130
QUICK_BELOW_MIN = 3.0

# What says most first: the time may not do for all.
CHECKS = (
    Check("loader.pointers", loader.pointers, 40),
    Check("calibration.times", calibration.times, 40),
    Check("calibration.mps", calibration.mps, 60),
    Check("correctness.losses", correctness.losses, 90),
    Check("gain.turns", gain.gain, 180),
    Check("pytorch.training", pytorch.training, 300),
    Check("launch.driver", gain.launch_real, 60),
    Check("loader.runtime_lock", loader.runtime_lock, 40),
    Check("loader.memory_operations", loader.memory_operations, 40),
    Check("loader.lookups", loader.lookups, 60),
    Check("correctness.killed", correctness.killed, 100),
    Check("correctness.abort", correctness.abort, 100),
    Check("correctness.stream_gate", correctness.stream_gate, 200),
    Check("calibration.slices", calibration.slices, 60),
    Check("calibration.nccl", calibration.nccl, 120),
    Check("correctness.patterns", correctness.patterns, 240),
    Check("pytorch.compiled", pytorch.compiled, 300),
    Check("launch.stub", gain.launch_stub, 90),
)

DESCRIPTION = """Checks Crossover on this machine's GPU and measures what the virtual GPU assumes. Prints a table and
writes a report folder: report.json, report.md, logs/, timeline.html, and what it says for the virtual GPU
(simgpu.options, simgpu.environment, calibration.md). Paths of this machine are taken out of it.
Needs no network and no root, and changes no setting of the card; MPS is a private daemon of its own folder.

A machine for the checks alone (CUDA 13, NCCL, python3, perhaps torch) need not build anything. On one that builds:
    scripts/gpu-qualify --prepare DIR                     DIR takes less than 64 MiB and depends on no build folder
and on the machine with the GPU, with this checkout's scripts/ and tests/bench/ and DIR:
    scripts/gpu-qualify --build DIR --minutes 10 --output REPORT

Exit status: 0 no check failed; 1 one failed or did not end in its time; 2 bad options or nothing to run;
77 no GPU here; 130 interrupted (the report is of what was done)."""


def positive(word):
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 600.0:
        raise argparse.ArgumentTypeError(f"'{word}' is not a number of minutes above 0 and up to 600")
    return value


def parse(arguments):
    names = [check.name for check in CHECKS]
    parser = Parser(prog="gpu-qualify", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", action="store_true", help="on the virtual GPU: shows that the checks work")
    parser.add_argument(
        "--minutes",
        type=positive,
        default=5.0,
        help=f"for all checks (default 5); below {QUICK_BELOW_MIN:g} each is shorter",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        default=[],
        help=f"only this check or family, may be repeated; one of {', '.join(names)}",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="report folder (default build/qualify-report); it is replaced"
    )
    parser.add_argument(
        "--build",
        type=Path,
        metavar="DIR",
        help="a build folder, or one made by --prepare (default: $CROSSOVER_BUILD, build/dev, else it is built)",
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch (default: this one)")
    parser.add_argument(
        "--libraries",
        type=Path,
        metavar="DIR",
        help="look for libcudart.so.13 and libnccl.so.2 here first "
        "(default: the toolkit, the system, --python's wheels)",
    )
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="only make a folder for --build")
    options = parser.parse_args(arguments)
    if options.libraries and not options.libraries.is_dir():
        parser.error(f"--libraries '{options.libraries}': no such folder")
    for name in options.only:
        if not chosen([name]):
            parser.error(f"--only '{name}'; allowed: {', '.join(names)}, or what is before a dot")
    return options


def chosen(only):
    return [
        check for check in CHECKS if not only or any(check.name == o or check.name.split(".")[0] == o for o in only)
    ]


def revision():
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def fresh(folder):
    """An empty report folder; of an old one only what a report is made of goes."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / "report.json").exists():
            raise MachineError(f"--output {folder}: not empty, and not a report")
        for old in folder.iterdir():  # the folder itself may be a mount
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    (folder / "logs").mkdir(parents=True)
    return folder


def run(options):
    if options.prepare:
        kit = obtain(options.build, print)
        print(f"{options.prepare}: {prepare(kit, options.prepare) / 2**20:.1f} MiB; use it with --build")
        return 0
    gpus = [] if options.virtual else find_gpus()
    if not gpus and not options.virtual:
        print("gpu-qualify: no GPU here (nvidia-smi lists none); --virtual checks the checks", file=sys.stderr)
        return NO_GPU
    kit = obtain(options.build, lambda text: print(text, flush=True))
    os.environ["CROSSOVER_BUILD"] = os.environ["SIMGPU_BUILD"] = str(kit.folder)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = first_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))
    users_path = os.environ.get("LD_LIBRARY_PATH", "")
    libraries = set_library_path(kit, options.python, options.virtual, options.libraries)
    if reason := cannot_start(kit, options.virtual):
        raise MachineError(reason)
    folder = fresh((options.output or REPOSITORY / "build" / "qualify-report").resolve())
    began = time.monotonic()
    header = {
        "device": gpus[0] if gpus else "the virtual GPU",
        "virtual": not gpus,
        "minutes": options.minutes,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": revision(),
        "machine": describe_machine(),
        "libraries": {name: bool(place) for name, place in libraries.items()},
    }

    def on_result(results, running):
        header["seconds"] = round(time.monotonic() - began, 1)
        report.write(folder, header, results)
        if running:
            print(f"{running.name} ...", flush=True)

    def context(check, results):
        return Context(
            kit,
            gpus,
            options.python,
            users_path,
            options.minutes < QUICK_BELOW_MIN,
            folder,
            folder / "logs" / f"{check.name}.log",
            results,
        )

    print(f"device: {header['device']}" + ("" if gpus else " (a timed model: its figures are not a GPU's)"))
    results, interrupted = run_all(chosen(options.only), context, options.minutes * 60, SIMGPU_RUN, on_result)
    report.write(folder, header, results)
    report.take_out(
        folder,
        {
            kit.folder: "BUILD",
            folder: "REPORT",
            REPOSITORY: "CHECKOUT",
            Path.home(): "HOME",
            Path(options.python).absolute().parent.parent: "PYTHON",
        },
    )
    calibrate.write_files(folder, report.as_json(header, results))
    print("\n" + report.terminal(results))
    print(f"\n{report.totals(results)}; report: {folder}")
    if interrupted:
        return INTERRUPTED
    return 1 if any(result.status in (FAILED, TIMED_OUT) for result in results) else 0


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: a report is left
    try:
        return run(options)
    except (MachineError, OSError, subprocess.SubprocessError) as error:
        fail(str(error), 2)
