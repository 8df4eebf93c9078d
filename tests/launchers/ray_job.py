#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job of two Ray workers by the recipe of docs/launchers.md: ray_job.py LIBRARY NAME PORT COMMAND.... Each worker
runs COMMAND as one rank. The job "alone" gets no library. No test here: launchers_test.py starts it."""

import os
import subprocess
import sys
import tempfile

import ray


@ray.remote(num_cpus=1)
def run(rank, port, command):
    ranks = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=port)
    done = subprocess.run(command, env=ranks, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main():
    library, name, port, *command = sys.argv[1:]
    preload = {} if name == "alone" else {"LD_PRELOAD": library, "CROSSOVER_JOB": name, "CROSSOVER_LOG": "info"}
    with tempfile.TemporaryDirectory(prefix="cxr-") as folder:  # short: sockets lie in it
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder,
                 object_store_memory=80_000_000, runtime_env={"env_vars": preload})
        results = ray.get([run.remote(rank, port, command) for rank in range(2)])
        ray.shutdown()
    for _, out in results:
        print(out)
    sys.exit(max(code for code, _ in results))


if __name__ == "__main__":
    main()
