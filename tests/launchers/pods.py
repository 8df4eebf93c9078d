# SPDX-License-Identifier: Apache-2.0
"""docs/examples/kubernetes.yaml: what it says, whether its parts agree, and its pods acted out with namespaces
(pod.sh). No cluster and no container runtime; no test cases."""

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

MANIFEST = Path(__file__).resolve().parents[2] / "docs" / "examples" / "kubernetes.yaml"
POD_SH = Path(__file__).resolve().parent / "pod.sh"
LIBRARY = "libcrossover.so"


def read(text):
    """The pods of a manifest, by name. ImportError where there is no PyYAML."""
    import yaml

    return {pod["metadata"]["name"]: pod["spec"] for pod in yaml.safe_load_all(text)}


def variables(spec):
    return {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}


def mounts(spec):
    """[(volume's name, path, read-only)] of the one container."""
    return [(mount["name"], mount["mountPath"], mount.get("readOnly", False))
            for mount in spec["containers"][0]["volumeMounts"]]


def faults(pods):
    """What in them does not agree, a sentence each."""
    found = []
    shared, jobs = set(), []
    for name, spec in pods.items():
        folders = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
        env = variables(spec)
        at = {}
        for volume, path, read_only in mounts(spec):
            if volume not in folders:
                found.append(f"{name}: the mount {path} names a volume {volume} that does not exist")
            at[path] = volume, read_only
        unused = set(folders) - {volume for volume, _ in at.values()}
        found += [f"{name}: nothing mounts the volume {volume}" for volume in sorted(unused)]
        library = PurePosixPath(env.get("LD_PRELOAD", ""))
        if library.name != LIBRARY or not any(str(parent) in at for parent in library.parents):
            found.append(f"{name}: LD_PRELOAD={library} lies in no mount or is not {LIBRARY}")
        folder = env.get("CROSSOVER_DIR")
        if folder not in at or at[folder][1]:
            found.append(f"{name}: CROSSOVER_DIR={folder} is not the path of a mount that is writable")
        else:
            shared.add(folders.get(at[folder][0]))
        if "CUDA_MPS_PIPE_DIRECTORY" in env:
            if env["CUDA_MPS_PIPE_DIRECTORY"] not in at:
                found.append(f"{name}: CUDA_MPS_PIPE_DIRECTORY is not the path of a mount")
            if spec.get("hostIPC") is not True:
                found.append(f"{name}: MPS of the host, but no hostIPC")
        jobs.append(env.get("CROSSOVER_JOB"))
    if len(shared) != 1:
        found.append(f"the pods do not share one folder: {sorted(map(str, shared))}")
    if None in jobs or len(set(jobs)) != len(jobs):
        found.append(f"the pods are not a job each: {jobs}")
    return found


def seen_by_kubectl(manifest):
    """The variables that kubectl finds in the manifest, [(name, value)], without a cluster: it decodes the pods by
    Kubernetes' own types. None where there is no kubectl."""
    if shutil.which("kubectl") is None:
        return None
    done = subprocess.run(["kubectl", "set", "env", "--local", "--list", "-f", str(manifest)], capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, "KUBECONFIG": os.devnull})
    if done.returncode:
        raise AssertionError(f"kubectl: {done.stderr.strip()}")
    return [tuple(line.split("=", 1)) for line in done.stdout.splitlines() if line and not line.startswith("#")]


def namespaces(spec):
    """Those that a pod has of its own, as words for unshare: a network with nothing but loopback is one."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    own = [] if spec.get("hostIPC") else ["--ipc"]
    return ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--net", *own]


def command(spec, folders, root, inner, added):
    """Words that run `inner` as the pod's container would: in its namespaces, with its mounts of the given `folders`
    (by volume) and its variables, `added` ones on top."""
    words = [*namespaces(spec), "bash", str(POD_SH), str(root)]
    words += [] if spec.get("hostIPC") else ["--own-shm"]
    for volume, path, read_only in mounts(spec):
        words += ["--mount", str(folders[volume]), path, "ro" if read_only else "rw"]
    env = variables(spec) | added
    return [*words, "--", "env", *(f"{name}={value}" for name, value in env.items()), *inner]
