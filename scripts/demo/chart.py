# SPDX-License-Identifier: Apache-2.0
"""A bar chart of the demo's periods as an SVG, made from result.json alone:
python3 scripts/demo/chart.py build/demo/result.json docs/images/periods.svg"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from svg import LIMIT, MUTED, OTHER, OURS, page, text

LABELS = {
    "serial": "one after the other",
    "timeslice": "time-sliced",
    "mps_in_phase": "MPS, in phase",
    "mps_mean": "MPS, mean of 5 offsets",
    "mps_best": "MPS, best of 5 offsets",
    "crossover": "Crossover",
}
WIDTH, LEFT, RIGHT, ROW, BAR, TITLE = 860, 200, 80, 30, 20, 58




def panel(setting, top):
    """One setting's bars; returns (svg parts, height)."""
    periods = {"serial": setting["serial_ms"]} | {k: v["period_ms"] for k, v in setting["modes"].items()}
    scale = (WIDTH - LEFT - RIGHT) / max(periods[key] for key in LABELS)
    parts = [text(16, top + 20, setting["title"], 15, weight="bold"),
             text(16, top + 40, "mean time of one iteration of each job, in ms; shorter is better", 12, MUTED)]
    y = top + TITLE
    for key, label in LABELS.items():
        ours = key == "crossover"
        parts.append(text(LEFT - 10, y + 15, label, anchor="end", weight="bold" if ours else "normal"))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{periods[key] * scale:.1f}" height="{BAR}" rx="2" '
                     f'fill="{OURS if ours else OTHER}"/>')
        parts.append(text(LEFT + periods[key] * scale + 8, y + 15, f"{periods[key]:.1f}", weight="bold" if ours else "normal"))
        y += ROW
    x = LEFT + setting["bound_ms"] * scale
    parts.append(f'<line x1="{x:.1f}" y1="{top + TITLE - 6}" x2="{x:.1f}" y2="{y}" stroke="{LIMIT}" stroke-width="2" '
                 'stroke-dasharray="5 3"/>')
    parts.append(text(x, y + 14, f"bound {setting['bound_ms']:.1f}", 12, LIMIT, "middle"))
    return parts, y + 34 - top


def chart(result):
    parts, y = [], 8
    for setting in result["settings"]:
        more, height = panel(setting, y)
        parts += more
        y += height
    parts.append(text(16, y + 8, f"Device: {result['device']}", 12, MUTED))
    return page(WIDTH, y + 22, parts)


def main(arguments):
    if len(arguments) != 2:
        print("usage: chart.py RESULT.json OUT.svg", file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as source:
        drawing = chart(json.load(source))
    with open(arguments[1], "w", encoding="utf-8") as out:
        out.write(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
