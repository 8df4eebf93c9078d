# SPDX-License-Identifier: Apache-2.0
"""Puts a demo run's results where readers find them: the table into the README, the chart into docs/images.
python3 scripts/demo/publish.py [FOLDER]   FOLDER holds result.json and table.md (default build/demo)"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import chart
from markers import replace_between

REPOSITORY = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- results: made by scripts/demo/publish.py -->", "<!-- end of results -->"


def main(arguments):
    if len(arguments) > 1:
        print("publish.py: at most one argument, the folder of a demo run", file=sys.stderr)
        return 2
    folder = Path(arguments[0]) if arguments else REPOSITORY / "build" / "demo"
    readme = REPOSITORY / "README.md"
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        table = (folder / "table.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"publish.py: no results of a demo run in {folder}: {error}", file=sys.stderr)
        return 1
    virtual = result["device"] == "virtual GPU"
    note = "Measured on the virtual GPU, whose figures are not a GPU's." if virtual else f"Measured on {result['device']}."
    text = f"\n{note}\n\n![Periods of each mode against the bound](docs/images/periods.svg)\n\n{table}"
    try:
        replace_between(readme, BEGIN, END, text)
    except ValueError as error:
        print(f"publish.py: {error}", file=sys.stderr)
        return 1
    images = REPOSITORY / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    (images / "periods.svg").write_text(chart.chart(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
