#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the report of scripts/gpu-qualify into what scripts/simgpu-run accepts, and into docs/calibration.md's table:
  calibrate.py report.json                       prints options, environment and the table
  calibrate.py report.json --write docs/calibration.md   puts the table between its marks
Derives from figures that are there; what was not measured is left out, and keeps the virtual GPU's default."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- measured: made by scripts/qualify/calibrate.py -->\n", "<!-- end of measured -->"


@dataclass(frozen=True)
class Parameter:
    """Of the virtual GPU: an option of simgpu-run (--…) or a variable of its libraries."""

    name: str
    value: str
    unit: str
    source: str  # check and figure
    caveat: str = ""


def figures_of(report):
    return {row["name"]: row["figures"] for row in report["checks"] if row["status"] == "ok"}


def number(value):
    """Three digits, as the server's options take them: no exponent."""
    text = f"{value:.3f}" if value < 10 else f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parameters(report):
    """In the order of tests/simgpu/README.md's table."""
    found, row = figures_of(report), []

    def add(name, check, figure, unit, scale=1.0, caveat="", least=0.0):
        value = found.get(check, {}).get(figure)
        if value is not None:
            row.append(Parameter(name, number(max(least, value * scale)), unit, f"{check}: {figure}", caveat))

    slices = found.get("calibration.slices", {})
    if "slice_us" in slices:
        add("--slice-us", "calibration.slices", "slice_us", "us", least=1.0)
        add(
            "--context-switch-us",
            "calibration.slices",
            "switch_us",
            "us",
            caveat="all that two processes lose, per slice",
        )
    add(
        "--launch-us",
        "calibration.times",
        "launch_to_done_us",
        "us",
        caveat="upper bound: an empty kernel, launch to seen done by polling",
    )
    add("--gap-us", "calibration.times", "gap_us", "us")
    copy_engines = found.get("loader.pointers", {}).get("bare", {}).get("copy_engines")
    if copy_engines:
        row.append(Parameter("--copy-engines", str(copy_engines), "", "loader.pointers: copy_engines"))
    nccl = found.get("calibration.nccl", {}).get("by_max_ctas", {}).get("default", {})
    caveat = "two ranks on one GPU over loopback sockets: no network's figure"
    if nccl.get("link_gbps"):
        row.append(
            Parameter("--link-gbps", number(nccl["link_gbps"]), "10^9 bit/s", "calibration.nccl: link_gbps", caveat)
        )
    if nccl.get("latency_us"):
        row.append(Parameter("--latency-us", number(nccl["latency_us"]), "us", "calibration.nccl: latency_us", caveat))
    if nccl.get("blocks"):
        share = min(1.0, nccl["blocks"] / nccl["multiprocessors"])
        row.append(
            Parameter(
                "SIMGPU_NCCL_SM_SHARE",
                f"{share:.4f}",
                "of a device",
                "calibration.nccl: blocks, multiprocessors",
                f"compute beside a waiting kernel took {nccl.get('slowdown_beside', float('nan')):.3f} times as long",
            )
        )
    return row


def options(row):
    return [word for p in row if p.name.startswith("--") for word in (p.name, p.value)]


def environment(row):
    return [f"{p.name}={p.value}" for p in row if not p.name.startswith("--")]


def table(report, row):
    """Markdown."""
    title = f"From a run on {report['device']}" + (
        ": no GPU's figures, only a sign that the script works." if report["virtual"] else "."
    )
    lines = [title, "", "| parameter | value | unit | from | mind |", "|---|---:|---|---|---|"]
    lines += [f"| `{p.name}` | {p.value} | {p.unit} | {p.source} | {p.caveat} |" for p in row]
    return "\n".join(lines) + "\n"


def write_files(folder, report):
    """simgpu.options (one line, for simgpu-run), simgpu.environment (NAME=value lines) and calibration.md."""
    row = parameters(report)
    (folder / "simgpu.options").write_text(" ".join(options(row)) + "\n", encoding="utf-8")
    (folder / "simgpu.environment").write_text("".join(f"{line}\n" for line in environment(row)), encoding="utf-8")
    (folder / "calibration.md").write_text(table(report, row), encoding="utf-8")


def main(arguments):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
    from machine import Parser, fail
    from markers import replace_between

    parser = Parser(prog="calibrate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="report.json of scripts/gpu-qualify")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks in FILE")
    asked = parser.parse_args(arguments)
    try:
        report = json.loads(asked.report.read_text(encoding="utf-8"))
        row = parameters(report)
        text = table(report, row)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{asked.report}: not a report of scripts/gpu-qualify ({error})", 2)
    if asked.write and report["virtual"]:
        fail(f"{asked.report}: of the virtual GPU, whose figures do not calibrate it; a report from a GPU is needed", 2)
    if asked.write:
        try:
            replace_between(asked.write, BEGIN, END, text)
        except (OSError, ValueError) as error:
            fail(f"--write {asked.write}: {error}", 2)
    print(" ".join(options(row)))
    print("\n".join(environment(row)))
    print("\n" + text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
