# SPDX-License-Identifier: Apache-2.0
"""The README's table of options, made from include/crossover/options.def, between its two markers.
python3 scripts/options_table.py --check   exit 1 if the README's table is not the one made now
python3 scripts/options_table.py --write   put it there"""

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = REPOSITORY / "include" / "crossover" / "options.def"
README = REPOSITORY / "README.md"
BEGIN, END = "<!-- options: made by scripts/options_table.py -->", "<!-- end of options -->"
STRING = r'"((?:[^"\\]|\\.)*)"'
CHOICE = re.compile(rf"CX_CHOICE\((\w+), (\d+), {STRING}, {STRING}, {STRING}\)")
NUMBER = re.compile(rf"CX_NUMBER\((\w+), (\d+), {STRING}, (\d+), (\d+), {STRING}\)")
TEXT = re.compile(rf"CX_TEXT\((\w+), {STRING}, (\d+), {STRING}\)")


def flag(environment):
    name = environment.removeprefix("CROSSOVER").strip("_").lower().replace("_", "-") or "mode"
    return f"--{name}"


def options():
    """(environment, allowed, default, text) of each row; a row that no pattern reads is an error."""
    found = []
    for number, line in enumerate(ROWS.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("CX_"):
            continue
        if match := CHOICE.fullmatch(line):
            _, default, name, choices, text = match.groups()
            words = choices.split("|")
            found.append((name, ", ".join(words), words[int(default)], text))
        elif match := NUMBER.fullmatch(line):
            _, default, name, low, high, text = match.groups()
            found.append((name, f"{low} to {high}", default, text))
        elif match := TEXT.fullmatch(line):
            _, name, longest, text = match.groups()
            found.append((name, f"up to {longest} characters", "empty", text))
        else:
            raise ValueError(f"{ROWS.name}:{number}: not a row this script can read")
    return found


def table():
    lines = ["| variable | `crossover-run` | allowed | default | what it does |", "|---|---|---|---|---|"]
    for name, allowed, default, text in options():
        lines.append(f"| `{name}` | `{flag(name)}` | {allowed} | {default} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def main(arguments):
    if arguments not in (["--check"], ["--write"]):
        print("options_table.py: one argument: --check or --write", file=sys.stderr)
        return 2
    text = README.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        print(f"options_table.py: {README.name} lacks the markers around the table", file=sys.stderr)
        return 1
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if arguments == ["--write"]:
        README.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print("options_table.py: the README's table of options is not the table of options.def; run it with --write",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
