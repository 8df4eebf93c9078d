# SPDX-License-Identifier: Apache-2.0
"""Results as JSON, as a table for a terminal and as Markdown. Reads nothing and measures nothing."""

import json
import re
import shutil
import socket

from .runner import CUT, FAILED, NOT_RUN, OK, SKIPPED, TIMED_OUT

FORMAT = 1


def as_json(header, results):
    rows = [
        {
            "name": result.name,
            "status": result.status,
            "seconds": round(result.seconds, 2),
            "summary": result.summary,
            "figures": result.figures,
        }
        for result in results
    ]
    return {"format": FORMAT, **header, "checks": rows}


def terminal(results, width=None):
    """A table with as many lines a check as its summary needs."""
    width = width or max(80, min(160, shutil.get_terminal_size((120, 40)).columns))
    name, status = (max([len(getattr(r, column)) for r in results] + [6]) for column in ("name", "status"))
    lines = [f"{'check':<{name}}  {'result':<{status}}  {'s':>6}  what was seen"]
    lines.append("-" * len(lines[0]))
    room = max(30, width - name - status - 12)
    for result in results:
        told = wrapped(result.summary or "", room)
        lines.append(f"{result.name:<{name}}  {result.status:<{status}}  {result.seconds:6.1f}  {told[0]}".rstrip())
        lines += [" " * (name + status + 12) + line for line in told[1:]]
    return "\n".join(lines)


def wrapped(text, room):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def totals(results):
    counts = {
        status: sum(r.status == status for r in results) for status in (OK, FAILED, TIMED_OUT, CUT, SKIPPED, NOT_RUN)
    }
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count or status in (OK, FAILED))


def markdown(header, results):
    lines = [f"# Qualification on {header['device']}", ""]
    if header["virtual"]:
        lines += ["Run on the virtual GPU: it shows that the checks work. Its figures are not a GPU's.", ""]
    spent = f"{header['seconds']:.0f} s of {header['minutes']:g} min"
    lines += [
        f"{totals(results)}; {spent}; revision {header['revision']}.",
        "",
        "| check | result | s | what was seen |",
        "|---|---|---:|---|",
    ]
    lines += [f"| {r.name} | {r.status} | {r.seconds:.1f} | {r.summary.replace('|', '/')} |" for r in results]
    for result in results:
        if result.name == "gain.turns" and result.figures.get("modes"):
            lines += ["", "## Gain", "", *gain_table(result.figures)]
        if result.name.startswith("pytorch.") and result.figures.get("models"):
            lines += ["", f"## {result.name}, on the {result.figures['on']}", "", *torch_table(result.figures)]
        if result.name == "launch.driver" and result.figures.get("ns"):
            lines += ["", "## Cost of a launch, ns", "", *launch_table(result.figures)]
    return "\n".join(lines) + "\n"


def gain_table(figures):
    lines = [
        f"C = {figures['c_ms']:.1f} ms, M = {figures['m_ms']:.1f} ms, E = {figures['e_ms']:.1f} ms, bound "
        f"{figures['bound_ms']:.1f} ms; phases from {figures['phases_from']}.",
        "",
        "| mode | period ms | speed-up | efficiency | losses identical |",
        "|---|---:|---:|---:|---|",
    ]
    for name, row in figures["modes"].items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | | | |")
        else:
            lines.append(
                f"| {name} | {row['period_ms']:.1f} | {row['speedup']:.2f} | {row['efficiency']:.3f} | "
                f"{'yes' if row['losses_identical'] else 'NO'} |"
            )
    return lines


def torch_table(figures):
    lines = [
        f"torch {figures['torch']}",
        "",
        "| model | mode | iteration or period ms | speed-up | losses identical |",
        "|---|---|---:|---:|---|",
    ]
    for model, row in figures["models"].items():
        if "error" in row:
            lines.append(f"| {model} | {row['error']} | | | |")
            continue
        lines.append(f"| {model} | alone | {row['alone_ms']:.1f} | | |")
        for mode in ("uncoordinated", "crossover"):
            lines.append(
                f"| {model} | {mode} | {row[mode]['period_ms']:.1f} | {row[mode]['speedup']:.2f} | "
                f"{'yes' if row[mode]['losses_identical'] else 'NO'} |"
            )
    return lines


def launch_table(figures):
    return [
        "| way | bare | preloaded | added |",
        "|---|---:|---:|---:|",
        *(
            f"| {way} | {row['bare']:.0f} | {row['preloaded']:.0f} | {row['preloaded'] - row['bare']:.0f} |"
            for way, row in figures["ns"].items()
        ),
    ]


def take_out(folder, names):
    """Replaces paths of the machine ({path: name}) in what was written, so that the report can be published."""
    longest_first = sorted(names.items(), key=lambda item: -len(str(item[0])))
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".md", ".log"):
            before = text = path.read_text(encoding="utf-8", errors="replace")
            for place, name in longest_first:
                if len(str(place)) > 1:
                    text = text.replace(str(place), name)
            text = re.sub(r"/[^\s\"':]*/cxq\.\w+", "SCRATCH", text).replace(socket.gethostname(), "HOST")
            if text != before:
                path.write_text(text, encoding="utf-8")


def write(folder, header, results):
    """report.json and report.md, whole or as they were before."""
    for name, text in (
        ("report.json", json.dumps(as_json(header, results), indent=1) + "\n"),
        ("report.md", markdown(header, results)),
    ):
        part = folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)
