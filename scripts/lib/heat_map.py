# SPDX-License-Identifier: Apache-2.0
"""The efficiency grid as a picture: a heat map of the cells that differ in C:M, and the others as tiles by what they
are about. Made from the report alone (grid_figures.report)."""

from grid_cells import RATIOS
from grid_figures import counts, summary_text
from svg import INK, MUTED, page, text

LEFT, TILE, HEIGHT, GAP, TOP = 230, 104, 46, 4, 64
WIDTH = LEFT + len(RATIOS) * (TILE + GAP) + 16
# (efficiency, red, green, blue); straight lines in between.
COLOURS = ((0.80, 214, 69, 65), (0.90, 246, 191, 103), (0.95, 190, 219, 140), (1.00, 47, 158, 68))
NOT_COUNTED = "#e4e7eb"


def colour(value):
    value = min(max(value, COLOURS[0][0]), COLOURS[-1][0])
    for (low, *from_rgb), (high, *to_rgb) in zip(COLOURS, COLOURS[1:]):
        if value <= high:
            part = (value - low) / (high - low)
            return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(from_rgb, to_rgb))
    raise AssertionError("the value lies in the scale")


def tile(x, y, cell, words):
    """Efficiency, below it what else is to be known of the cell."""
    fill = colour(cell["efficiency"]) if counts(cell) else NOT_COUNTED
    value = "failed" if "error" in cell else f"{cell['efficiency']:.3f}"
    return [f'<rect x="{x}" y="{y}" width="{TILE}" height="{HEIGHT}" rx="3" fill="{fill}"/>',
            text(x + TILE / 2, y + 20, value, 15, INK, "middle", "bold"),
            text(x + TILE / 2, y + 37, words, 10, INK, "middle")]


def heat_map(found):
    cells = found["cells"]
    parts = [text(16, 24, "Efficiency: bound T* / period, by jobs and C:M", 16, weight="bold"),
             text(16, 44, "small: combined speed, 1 = one job after the other; grey: not counted", 12, MUTED)]
    y = TOP
    parts += [text(LEFT + k * (TILE + GAP) + TILE / 2, y + 10, f"C:M = {ratio}", 12, MUTED, "middle")
              for k, ratio in enumerate(RATIOS)]
    y += 20
    mapped = list(dict.fromkeys(cell["row"] for cell in cells.values() if cell["column"]))
    for title in mapped:
        parts.append(text(LEFT - 10, y + 28, title, anchor="end"))
        for cell in cells.values():
            if cell["row"] == title and cell["column"]:
                x = LEFT + RATIOS.index(cell["column"]) * (TILE + GAP)
                parts += tile(x, y, cell, speed(cell))
        y += HEIGHT + GAP
    y += 14
    for title in dict.fromkeys(cell["row"] for cell in cells.values() if not cell["column"]):
        parts.append(text(LEFT - 10, y + 28, title, anchor="end"))
        row = [(name, cell) for name, cell in cells.items() if cell["row"] == title and not cell["column"]]
        for k, (name, cell) in enumerate(row):
            if k and k % len(RATIOS) == 0:
                y += HEIGHT + GAP
            short = name.split("-", 1)[-1]
            parts += tile(LEFT + k % len(RATIOS) * (TILE + GAP), y, cell, f"{short[:18]}")
        y += HEIGHT + GAP
    parts.append(text(16, y + 18, f"Device: {found['device']}.", 12, MUTED))
    for line in summary_text(found).split("; "):
        y += 16
        parts.append(text(16, y + 18, line.rstrip("."), 12, MUTED))
    return page(WIDTH, y + 34, parts)


def speed(cell):
    return "" if "error" in cell else f"speed {cell['speed']:.2f}"
