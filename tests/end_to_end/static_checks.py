#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Static checks of every script, those included that only run at night or on a GPU: pyflakes for Python, ShellCheck
for shells. Found by what they are, so a new one is checked as well."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "cmake", "scripts", "tests")
CHECKERS = {
    "python": ("pyflakes3",),
    "bash": ("shellcheck", "--external-sources", "--source-path=SCRIPTDIR"),
}


def language(path):
    """What of CHECKERS it is written in, by its name or its first line; None: something else."""
    by_name = {".py": "python", ".sh": "bash"}.get(path.suffix)
    if by_name or path.suffix:
        return by_name
    with path.open("rb") as file:
        first = file.readline(100)
    return next((name for name in CHECKERS if first.startswith(b"#!") and name.encode() in first), None)


def main():
    scripts = {name: [] for name in CHECKERS}
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and language(path):
                scripts[language(path)].append(path.relative_to(REPOSITORY))
    failed = False
    for name, checker in CHECKERS.items():
        print(f"{checker[0]}: {len(scripts[name])} files", flush=True)
        failed |= subprocess.run([*checker, *scripts[name]], cwd=REPOSITORY).returncode != 0 or not scripts[name]
    return failed


if __name__ == "__main__":
    sys.exit(main())
