# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/workloads/frameworks, ready to be started as any training program of the virtual GPU, as far as
the frameworks are here: PyTorch in the cache, Horovod as scripts/check-horovod built it. Downloads nothing."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import vendor
import virtual_runtime

FOLDER = vendor.REPOSITORY / "tests" / "workloads" / "frameworks"
HOROVOD = vendor.REPOSITORY / "build" / "horovod" / "python"
TORCH_PATTERNS = ("ddp", "ddp_legacy_backend", "all_reduce")
HOROVOD_PATTERNS = ("horovod", "horovod_async")


@dataclass(frozen=True)
class Program:
    path: Path  # to start with a rank's environment and dp_train's options
    arguments: tuple  # its own, in front


def horovod_library():
    return next(HOROVOD.glob("lib/python*/site-packages/horovod/torch/mpi_lib_v2*.so"), None)


def programs(build):
    """(programs by the pattern's name, what is not here and why, a line each)."""
    if not vendor.framework_version("torch"):
        return {}, ["PyTorch is not in the cache (scripts/real-programs --download)"]
    found, absent = {}, []
    torch = next(path for path in virtual_runtime.torch_libraries() if path.name == "libtorch_cuda.so")
    for name, python, library, patterns in (
            ("torch_train", vendor.framework_python(), torch, TORCH_PATTERNS),
            ("horovod_train", HOROVOD / "bin" / "python", horovod_library(), HOROVOD_PATTERNS)):
        if library is None:
            absent.append(f"{name}: Horovod is not in build/horovod (scripts/check-horovod --download)")
        elif missing := virtual_runtime.missing(build, library):
            absent.append(f"{name}: {missing}")
        else:
            path = make_starter(build, name, python, library)
            found |= {pattern: Program(path, ("--pattern", pattern)) for pattern in patterns}
    return found, absent


def make_starter(build, name, python, library):
    """A script in the build folder that runs the program `name` with the virtual runtime and NCCL behind whatever else is
    preloaded. It replaces itself by the program, so that the process stays the same."""
    folder = build.folder / "tests" / "workloads" / "frameworks"
    runtime = virtual_runtime.stand_ins(build, library)
    rest, starter = (folder / f"{name}.{suffix}" for suffix in ("rest.so", "sh"))
    part = folder / f"{name}.{os.getpid()}"
    virtual_runtime.make_rest(runtime, [library, *virtual_runtime.torch_libraries()], part)
    part.replace(rest)
    variables = {
        "SIMGPU_KERNELS": folder.parent / "dp_train.simgpu.so", "DP_LAUNCH": folder / "libdp_launch.so",
        "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Its packing kernel has no version for the virtual GPU; copies do the same.
        "HOROVOD_BATCH_D2D_MEMCOPIES": "0",
    }
    words = [f"{key}={shlex.quote(str(value))}" for key, value in variables.items()]
    preload = ":".join(map(str, (*runtime, rest)))
    part.write_text(f"#!/bin/sh\nexport {' '.join(words)}\n"
                    f"export LD_PRELOAD=\"${{LD_PRELOAD:+$LD_PRELOAD:}}\"{shlex.quote(preload)}\n"
                    f"exec {shlex.quote(str(python))} {shlex.quote(str(FOLDER / f'{name}.py'))} \"$@\"\n", encoding="utf-8")
    part.chmod(0o755)
    part.replace(starter)
    return starter
