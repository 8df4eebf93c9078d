#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the names of the driver's exported functions, and which of them a look-up by symbol, version and stream
family gives, as rows for recorder.cpp. Both come from the vendor's headers alone: the declarations, the renaming macros
and the typedefs with versions. No name is listed here.

usage: make_names.py INCLUDE_FOLDER OUTPUT
"""

import re
import sys
from pathlib import Path

HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
TYPEDEFS = ("cudaTypedefs.h", "cudaProfilerTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h",
            "cudaVDPAUTypedefs.h")


def split_name(name):
    """cuMemcpyHtoD_v2_ptds: (cuMemcpyHtoD, 2, ptds)."""
    base, version, family = re.fullmatch(r"(\w+?)(?:_v(\d+))?(?:_(ptsz|ptds))?", name).groups()
    return base, int(version or 1), family or ""


def exported_names(folder):
    names = set()
    for header in HEADERS:
        if not (folder / header).exists():
            continue
        text = (folder / header).read_text()
        names.update(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
        for target in re.findall(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(.*?)\s*$", text, re.MULTILINE):
            plain = re.fullmatch(r"cu[A-Z]\w*", target)
            twin = re.fullmatch(r"__CUDA_API_(PTSZ|PTDS)\((cu[A-Z]\w*)\)", target)
            if plain:
                names.add(target)
            elif twin:
                names.update((twin[2], f"{twin[2]}_{twin[1].lower()}"))
        names.difference_update(re.findall(r"\binline\s+CUresult\s+(cu[A-Z]\w*)\s*\(", text))
    return names


def look_ups(folder, names):
    """Rows (base, CUDA version, family, exported name). A base's ABIs and its typedefs are both in order of age;
    where the headers declare fewer typedefs than ABIs, the newest belong together."""
    versions = {}
    for header in TYPEDEFS:
        if (folder / header).exists():
            for base, version, family in re.findall(r"\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(?:_(ptsz|ptds))?\s*\)",
                                                    (folder / header).read_text()):
                versions.setdefault((base, family), set()).add(int(version))
    exported = {}
    for name in names:
        base, number, family = split_name(name)
        exported.setdefault((base, family), []).append((number, name))
    rows = []
    for key in sorted(versions):
        ages = sorted(versions[key])
        abis = [name for _, name in sorted(exported.get(key, []))]
        rows += [(key[0], age, key[1], name) for age, name in zip(reversed(ages), reversed(abis))]
    return rows


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    names = exported_names(folder)
    rows = look_ups(folder, names)
    if not names or not rows:
        sys.exit(f"make_names.py: no driver function found in the headers of {folder}")
    families = {"": "kAny", "ptsz": "kPerThread", "ptds": "kPerThread"}
    twins = {(row[0], row[2]) for row in rows}
    lines = ["// Made by make_names.py from the CUDA headers; do not edit."]
    lines += [f"CX_NAME({name})" for name in sorted(names)]
    for base, version, family, name in rows:
        legacy = not family and any((base, twin) in twins for twin in ("ptsz", "ptds"))
        lines.append(f"CX_LOOK_UP({base}, {version}, {'kLegacy' if legacy else families[family]}, {name})")
    Path(sys.argv[2]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
