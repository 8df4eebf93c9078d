# SPDX-License-Identifier: Apache-2.0
"""Checks with real PyTorch: torch_train.py under torchrun, two ranks on one GPU, alone and twice at once, with and
without the library. On the virtual GPU, which runs no kernels of PyTorch's, the same script trains on the processor by
gloo."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from job import JobError, Result, free_port
from together import shared_window

from .correctness import JOINED
from .runner import Skip, Wrong

SCRIPT = Path(__file__).resolve().parent / "torch_train.py"
ASK = (
    "import json, torch; print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, "
    "'available': torch.cuda.is_available(), 'nccl': torch.distributed.is_nccl_available()}))"
)
JOBS = ("A", "B")


def what_there_is(context):
    """Facts of the interpreter's torch; Skip without one that serves."""
    try:
        done = subprocess.run([context.python, "-c", ASK], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skip(f"{context.python}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Skip(f"no torch in {Path(context.python).name}: {last}")
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    if not context.virtual and not (facts["available"] and facts["nccl"]):
        raise Skip(f"torch {facts['torch']} has no CUDA or no NCCL here")
    return facts


class Training:
    """One torchrun with two ranks; read() waits for it."""

    def __init__(self, context, machine, name, preload, options, meeting):
        self.name = name
        self.folder = machine.folder / name
        self.folder.mkdir(exist_ok=True)
        self.report = self.folder / "report.json"
        self.report.unlink(missing_ok=True)
        variables = {"QUALIFY_JOB": f"crossover-{name}", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "2"}
        if preload:
            variables |= {"CROSSOVER_JOB": f"job {name}", "CROSSOVER_LOG": "info"}
        environment = machine.environment(preload, **variables)
        # PyTorch brings its own CUDA, and must not find the virtual GPU's.
        environment["LD_LIBRARY_PATH"] = context.users_path
        if not context.virtual:
            own = machine.rank_environment(name, 0)
            environment |= {key: value for key, value in own.items() if key not in ("LOCAL_RANK", "NCCL_HOSTID")}
        command = [
            context.python,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            str(free_port()),
            str(SCRIPT),
            *options,
            "--json",
            str(self.report),
            *meeting,
        ]
        self.log = open(context.log.with_suffix(f".{name}.log"), "wb")
        print("+", " ".join(command), "preloaded" if preload else "bare", flush=True)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=False,
        )

    def read(self, limit_s):
        try:
            status = self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise JobError(f"training {self.name}: not done after {limit_s:.0f} s") from None
        if status:
            raise JobError(f"training {self.name}: torchrun ended with {status}; see {Path(self.log.name).name}")
        row = json.loads(self.report.read_text(encoding="utf-8"))
        return Result(self.name, [], row["losses"], starts=row["starts"], ends=row["ends"])

    def joined(self):
        """Whether both ranks said that they share the device."""
        return Path(self.log.name).read_text(encoding="utf-8", errors="replace").count(JOINED) >= 2

    def stop(self):
        """torchrun passes its own end on to its workers, given time."""
        self.log.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def train(context, machine, names, preload, options, limit_s):
    meeting = []
    if len(names) > 1:
        folder = tempfile.mkdtemp(dir=machine.folder)
        meeting = ["--meet", folder, "--jobs", str(len(names))]
    jobs = []
    try:
        for name in names:
            jobs.append(Training(context, machine, name, preload, options, meeting))
        end = time.monotonic() + limit_s
        results = [job.read(max(1.0, end - time.monotonic())) for job in jobs]
        # On the processor there is no device to join.
        if preload and not context.virtual and not all(job.joined() for job in jobs):
            raise JobError("preloaded, a training never joined the device")
        return results
    finally:
        for job in jobs:
            job.stop()


def one_model(context, machine, options, limit_s):
    """Alone bare, two at once bare, two at once preloaded."""
    solo = train(context, machine, JOBS[:1], False, options, limit_s)[0]
    row = {
        "alone_ms": solo.iteration_ms,
        "first_loss": solo.losses[0],
        "last_loss": solo.losses[-1],
        "losses": len(solo.losses),
        "changed": len(set(solo.losses)) > 1,
    }
    for mode, preload in (("crossover", True), ("uncoordinated", False)):
        pair = train(context, machine, JOBS, preload, options, limit_s)
        window = shared_window(pair)
        periods = [result.period_ms(window) for result in pair]
        period = sum(periods) / len(periods)
        row[mode] = {
            "period_ms": period,
            "speedup": 2 * solo.iteration_ms / period,
            "losses_identical": all(result.losses == solo.losses for result in pair),
        }
    return row


def verdict(context, found):
    wrong = []
    for model, row in found.items():
        if "error" in row:
            wrong.append(f"{model}: {row['error']}")
        # Losses that differ without the library too are PyTorch's own.
        elif not row["crossover"]["losses_identical"] and row["uncoordinated"]["losses_identical"]:
            wrong.append(f"{model}: losses with the library differ from those without")
        elif not row["changed"]:
            wrong.append(f"{model}: the loss never changed, so nothing was trained")
    if wrong:
        raise Wrong("; ".join(wrong))
    told = [
        f"{model} {row['alone_ms']:.1f} ms alone, speed-up {row['crossover']['speedup']:.2f} in turns and "
        f"{row['uncoordinated']['speedup']:.2f} side by side, losses "
        f"{'equal' if row['crossover']['losses_identical'] else 'not reproducible even without the library'}"
        for model, row in found.items()
    ]
    return ("on the processor, by gloo: " if context.virtual else "") + "; ".join(told)


def run_models(context, cases, limit_s):
    facts = what_there_is(context)
    context.figures.save(**facts, on="processor" if context.virtual else "GPU")
    found = {}
    with context.machine() as machine:
        for label, options in cases:
            try:
                found[label] = one_model(context, machine, options, limit_s)
            except JobError as error:
                found[label] = {"error": str(error)}
            context.figures.save(models=found)
    return verdict(context, found)


def sized(context):
    if context.virtual:
        return ["--cpu", "--small", "--batch", "24", "--iterations", "60", "--warmup", "2"]
    return ["--iterations", "40", "--warmup", "8"]


def training(context):
    """A ResNet-50 and a transformer by DDP."""
    models = ("transformer",) if context.virtual else ("resnet", "transformer")
    return run_models(context, [(model, ["--model", model, *sized(context)]) for model in models], 100)


def compiled(context):
    """torch.compile with CUDA graphs, which launches graphs in place of kernels."""
    if context.virtual:
        raise Skip("CUDA graphs of torch.compile need a GPU")
    return run_models(
        context, [("compiled transformer", ["--model", "transformer", "--compile", *sized(context)])], 120
    )
