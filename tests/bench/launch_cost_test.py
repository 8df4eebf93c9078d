# SPDX-License-Identifier: Apache-2.0
"""What a launch may cost a job that is alone on its device, by counts that do not depend on the machine: instructions
(callgrind), system calls (seccomp) and writes to memory that threads or processes share (page protection). Times are no
test's business: launch_cost.py measures them.
Usage: launch_cost_test.py BUILD instructions|writes; exit status 77: skipped, valgrind is missing."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from launch_cost import Failed, Setup, by_the_rules, instructions_a_launch

MOST_INSTRUCTIONS = 60
SKIPPED = 77


def check_instructions(setup):
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return SKIPPED
    bare, alone = (instructions_a_launch(setup, side) for side in ("bare", "alone"))
    wrong = 0
    for entry, count in bare.items():
        added = alone[entry] - count
        # Nothing added would mean that the entry does not come by the library at all.
        verdict = "ok" if 0 < added <= MOST_INSTRUCTIONS else "WRONG"
        wrong += verdict != "ok"
        print(f"{entry:<44} {added:7.1f} instructions added  {verdict}")
    print(f"{wrong} of {len(bare)} entries outside 1 to {MOST_INSTRUCTIONS}")
    return int(wrong != 0)


def check_writes(setup):
    """Each rule is seen to be kept by the library, and to be enforced: a run that breaks it on purpose must die of it."""
    expected = {
        ("bare",): None,
        ("alone",): None,
        ("alone", "--break", "call"): signal.SIGSYS,
        ("alone", "--break", "write"): signal.SIGSEGV,
        ("one of two",): signal.SIGSEGV,  # counts launches: the rule bites inside the library too
    }
    wrong = 0
    for run, ends_by in expected.items():
        seen = by_the_rules(setup, *run)
        wrong += seen != ends_by
        print(f"{' '.join(run):<24} ended by {seen and seen.name}, expected {ends_by and ends_by.name}"
              + ("" if seen == ends_by else "  WRONG"))
    return int(wrong != 0)


def main(arguments):
    checks = {"instructions": check_instructions, "writes": check_writes}
    if len(arguments) != 2 or arguments[1] not in checks:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return checks[arguments[1]](Setup(Path(arguments[0])))
    except (Failed, subprocess.SubprocessError) as error:
        print(f"launch_cost_test: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
