# SPDX-License-Identifier: Apache-2.0
"""The library's events, recorded while jobs run."""

import json
import subprocess
from collections import Counter
from contextlib import contextmanager

from machine import MachineError


@contextmanager
def recorded_events(build, folder, path):
    """Gives a list that holds the lines of windows_events about a shared folder at the end, as does the file `path`."""
    lines = []
    with open(path, "w+", encoding="utf-8") as out:
        recorder = subprocess.Popen([build.folder / "tests" / "bench" / "windows_events", folder],
                                    stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE)
        try:
            yield lines
        finally:
            _, said = recorder.communicate(timeout=60)
        if recorder.returncode:
            raise MachineError(f"windows_events ended with {recorder.returncode}: {said.decode().strip()}")
        out.seek(0)
        lines.extend(out)


def grants(lines):
    """How many turns there were, by (device's number, job's key)."""
    rows = map(json.loads, lines)
    return Counter((row["ordinal"], row["job"]) for row in rows if row.get("kind") == "grant")
