# SPDX-License-Identifier: Apache-2.0
"""What released programs for GPUs get on the virtual one in place of NVIDIA's runtime and NCCL (NVIDIA's runtime takes no
driver but NVIDIA's): libraries to preload. Runs and loads nothing but a compiler."""

import re
import shutil
import subprocess

import vendor

REFUSED = "refused:"  # what a program's standard error has where it called a function that is not there


def symbols(library, *options):
    listing = subprocess.run(["nm", "-D", *options, str(library)], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listing.splitlines()]
    return {(row[-1].split("@")[0], row[-2]) for row in rows if len(row) > 1}


def names(library, *options):
    return {name for name, _ in symbols(library, *options)}


def needed(library):
    listing = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[([^\]]*)\]", listing)


def torch_libraries():
    """Of the PyTorch in the cache, which has to be there."""
    torch = next(vendor.framework_folder().glob("lib/python*/site-packages/torch"))
    return [*torch.glob("lib/*.so*"), *torch.glob("_C*.so")]


def missing(build, binary):
    """What is not here that `binary` would need; empty where nothing is."""
    if shutil.which("cc") is None:
        return "cc (apt-get install gcc)"
    for path in stand_ins(build, binary):
        if not path.exists():
            return f"{path} (build the targets simgpu_server and simgpu_nccl)"
    return ""


def stand_ins(build, binary):
    """The virtual runtime and NCCL, for those that `binary` needs."""
    folder = build.folder / "tests" / "simgpu" / "lib"
    return [folder / name for name in needed(binary) if re.match(r"lib(cudart|nccl)\.so", name)]


def make_rest(have, binaries, library):
    """Makes `library` with what `binaries` refer to of the runtime and NCCL and `have` lack: functions that refuse, with
    a line each."""
    there = set().union(*(names(path, "--defined-only") for path in have))
    wanted = set()
    for path in binaries:
        wanted |= {name for name in names(path, "--undefined-only") if re.match(r"p?nccl[A-Z]|cuda[A-Z]", name)}
    refuse = f'int {{0}}(void) {{{{ fprintf(stderr, "{REFUSED} {{0}}\\n"); return 801; }}}}\n'
    source = "#include <stdio.h>\n" + "".join(map(refuse.format, sorted(wanted - there)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=source, text=True, check=True)
