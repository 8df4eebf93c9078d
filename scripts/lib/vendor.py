# SPDX-License-Identifier: Apache-2.0
"""The vendors' own libraries to test against: an installed CUDA toolkit's, and wheels from PyPI unpacked into a cache
outside the repository. Also the names that Crossover intercepts. Nothing here runs, loads or imports
a library, and nothing is fetched unless asked for."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Old and new of each interface. The second column is what --newest takes in place of the pinned version.
LIBRARY_WHEELS = (
    ("nvidia-cuda-runtime-cu12", "12.1.105"),
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-runtime", "13.5.37"),
    ("nvidia-nccl-cu12", "2.18.1"),
    ("nvidia-nccl-cu12", "2.21.5"),
    ("nvidia-nccl-cu12", "2.32.3"),
    ("nvidia-nccl-cu13", "2.32.3"),
    ("nvidia-cublas-cu12", "12.9.3.13"),
    ("nvidia-cublas", "13.10.0.20"),
    ("nvidia-cudnn-cu12", "9.28.0.42"),
    ("nvidia-cudnn-cu13", "9.28.1.4"),
)
# Only looked at, not run.
FRAMEWORK_WHEELS = (("torch", "2.15.0"), ("tensorflow", "2.21.0"))
# Run, in an environment of their own with all that they need.
FRAMEWORKS = (("torch", "2.15.0"), ("numpy", None), ("cupy-cuda13x", "14.2.0"), ("numba-cuda", "0.30.4"))
KEPT = re.compile(r"\.so(\.\d+)*$|\.a$|/include/nccl\.h$")


class VendorError(RuntimeError):
    """A library that could not be had; the text says why."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crossover"


def intercepted(library):
    """Names that a built libcrossover.so exports: the rows of its tables (a test holds the two equal), and dlsym."""
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}


def unpack_wheel(wheel, folder):
    """The libraries and NCCL's header of a wheel; the folder appears whole or not at all."""
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if KEPT.search(member.filename):
                    archive.extract(member, part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fetch_wheel(name, version):
    """Downloads and unpacks; the wheel itself is not kept."""
    requirement = f"{name}=={version}" if version else name
    folder = cache_folder() / "unpacked"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        print(f"fetching {requirement}", file=sys.stderr, flush=True)
        result = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                                 "--no-deps", "--only-binary=:all:", "--dest", scratch, requirement],
                                capture_output=True, text=True)
        if result.returncode:
            raise VendorError(f"could not get {requirement}: {result.stderr.strip().splitlines()[-1:]}")
        wheel = next(Path(scratch).glob("*.whl"))
        target = folder / "-".join(wheel.name.split("-")[:2])
        if not target.exists():
            unpack_wheel(wheel, target)
    return target


def wheel_folders(wheels, download, newest=False):
    """Folders of those wheels that are there or, with download, can be had. A wheel that fails is told and left out."""
    folders = []
    for name, version in wheels:
        folder = cache_folder() / "unpacked" / f"{name.replace('-', '_')}-{version}"
        try:
            if download and newest:
                folder = fetch_wheel(name, None)
            elif download and not folder.exists():
                folder = fetch_wheel(name, version)
        except VendorError as error:
            print(error, file=sys.stderr)
        if folder.exists() and folder not in folders:
            folders.append(folder)
    return folders


def toolkit_folder():
    """Where an installed toolkit has its libraries, or None."""
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        for folder in ("lib64", "lib") if root else ():
            if any((Path(root) / folder).glob("libcudart.so.*")):
                return (Path(root) / folder).resolve()
    return None


@dataclass(frozen=True)
class Library:
    """A file of a vendor's, with what to call it and where the libraries that it needs are."""

    label: str
    path: Path
    search: tuple  # folders, for LD_LIBRARY_PATH
    cuda: int  # major version


def is_library(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries(download=False, newest=False, frameworks=False):
    """All of them, in a fixed order: the toolkit's first."""
    found = []
    toolkit = toolkit_folder()
    if toolkit:
        # One file has several names; the one with the major version is what programs load.
        for path in sorted(toolkit.glob("lib*.so.*")):
            if re.search(r"\.so\.\d+$", path.name) and is_library(path.resolve()):
                found.append(Library(f"toolkit {path.name}", path, (toolkit,), toolkit_major(toolkit)))
        static = toolkit / "libcudart_static.a"
        if static.exists():
            found.append(Library("toolkit libcudart_static.a", static, (toolkit,), toolkit_major(toolkit)))
    folders = wheel_folders(LIBRARY_WHEELS, download, newest)
    places = {12: [], 13: []}
    for folder in folders:
        for place in sorted({path.parent for path in folder.rglob("*.so*")}):
            places[wheel_major(folder)].insert(0, place)
    for folder in folders:
        major = wheel_major(folder)
        for path in sorted(folder.rglob("lib*")):
            if is_library(path) or path.name == "libcudart_static.a":
                found.append(Library(f"{folder.name} {path.name}", path, (path.parent, *places[major]), major))
    for folder in wheel_folders(FRAMEWORK_WHEELS, download, newest) if frameworks else ():
        for path in sorted(folder.rglob("*.so*")):
            if is_library(path):
                found.append(Library(f"{folder.name} {path.name}", path, (path.parent, *places[13]), 13))
    return found


def toolkit_major(folder):
    names = [path.name for path in folder.glob("libcudart.so.*")]
    return max(int(re.search(r"\.so\.(\d+)", name)[1]) for name in names)


def wheel_major(folder):
    """Of CUDA: in the wheel's name, or for those without, in its version."""
    name, version = folder.name.rsplit("-", 1)
    named = re.search(r"_cu(\d+)$", name)
    return int(named[1]) if named else int(version.split(".")[0])


def framework_folder():
    return cache_folder() / "frameworks"


def framework_python():
    """The interpreter of the environment with the frameworks, or None."""
    python = framework_folder() / "bin" / "python"
    return python if python.exists() else None


def framework_version(name):
    """Of a distribution whose name begins with this, in that environment; None where it is not there."""
    for path in framework_folder().glob(f"lib/python*/site-packages/{name}*.dist-info"):
        return path.name.removesuffix(".dist-info").rsplit("-", 1)[1]
    return None


def fetch_frameworks(newest=False):
    """Makes the environment, or completes it. A failure is told; what is there stays usable."""
    requirements = [name if newest or version is None else f"{name}=={version}" for name, version in FRAMEWORKS]
    try:
        if framework_python() is None:
            subprocess.run([sys.executable, "-m", "venv", framework_folder()], check=True)
        subprocess.run([framework_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                        *(["--upgrade"] if newest else []), *requirements], check=True)
    except subprocess.CalledProcessError as error:
        print(f"could not get {', '.join(requirements)}: {error}", file=sys.stderr)


def write_table(path, name, script, text):
    """Puts the text between the marks of that name in a page; VendorError where it has none."""
    begin, end = f"<!-- {name}: made by scripts/{script} --write -->", f"<!-- end of {name} -->"
    content = path.read_text()
    if begin not in content or end not in content:
        raise VendorError(f"{path} has no marks for the table of {name}")
    head, rest = content.split(begin, 1)
    path.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
