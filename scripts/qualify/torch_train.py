# SPDX-License-Identifier: Apache-2.0
"""A training run as a PyTorch user writes it: DistributedDataParallel, data-loader workers, synthetic data, one of two
networks. Started by torchrun; knows nothing of Crossover. Rank 0 writes losses and times to --json."""

import argparse
import json
import os
import time

# Several ranks on one GPU pass NCCL's check for duplicates by a host id
# of their own. Before torch, which reads it once.
if os.environ.get("QUALIFY_JOB"):
    os.environ["NCCL_HOSTID"] = f"{os.environ['QUALIFY_JOB']}-{os.environ['RANK']}"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 100
VOCABULARY = 512


class Bottleneck(nn.Module):
    """ResNet's: 1x1, 3x3, 1x1, and the input added."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = stride == 1 and width_in == out
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(width_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet(blocks, width):
    layers = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))).mean(1)


class Synthetic(Dataset):
    """A sample is a function of its number alone."""

    def __init__(self, kind, length, size):
        self.kind, self.length, self.size = kind, length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        if self.kind == "resnet":
            return torch.randn(3, self.size, self.size, generator=random), index % CLASSES
        return torch.randint(VOCABULARY, (self.size,), generator=random), index % VOCABULARY


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("resnet", "transformer"), default="resnet")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="samples a rank")
    parser.add_argument("--small", action="store_true", help="a network for a processor")
    parser.add_argument("--cpu", action="store_true", help="no GPU: gloo")
    parser.add_argument("--compile", action="store_true", help="torch.compile with CUDA graphs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--meet", help="folder in which jobs that are to be measured together wait for each other")
    parser.add_argument("--jobs", type=int, default=1, help="how many meet there")
    parser.add_argument("--json", required=True)
    return parser.parse_args()


def meet(folder, jobs, rank):
    """Rank 0 of each job says that it is ready, and waits for the others'."""
    if rank == 0:
        with open(os.path.join(folder, os.environ["QUALIFY_JOB"]), "w", encoding="utf-8"):
            pass
        end = time.monotonic() + 300
        while len(os.listdir(folder)) < jobs and time.monotonic() < end:
            time.sleep(0.002)


def monotonic_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def main():
    options = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    for kernels in ("flash", "mem_efficient", "cudnn"):  # attention whose backward pass does not repeat bit for bit
        getattr(torch.backends.cuda, f"enable_{kernels}_sdp", lambda _: None)(False)
    torch.set_num_threads(1 if options.cpu else 4)
    if options.cpu:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    else:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    if options.model == "resnet":
        model = resnet((1, 1), 8) if options.small else resnet((3, 4, 6, 3), 64)
        size = 32 if options.small else 128
    else:
        model = Transformer(32, 1) if options.small else Transformer(512, 6)
        size = 16 if options.small else 128
    model = DistributedDataParallel(model.to(device), device_ids=None if options.cpu else [device.index])
    step_model = torch.compile(model, mode="reduce-overhead") if options.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    total = options.warmup + options.iterations
    data = Synthetic(options.model, total * options.batch * world, size)
    loader = DataLoader(
        data,
        options.batch,
        sampler=DistributedSampler(data, world, rank, shuffle=False),
        num_workers=options.workers,
        pin_memory=not options.cpu,
        drop_last=True,
    )
    losses, starts, ends = [], [], []
    criterion = nn.CrossEntropyLoss()
    for number, (samples, labels) in enumerate(loader):
        if number == options.warmup:
            dist.barrier()
            if options.meet:
                meet(options.meet, options.jobs, rank)
                dist.barrier()
        begin = monotonic_ns()
        samples, labels = samples.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(step_model(samples), labels)
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
        if number >= options.warmup:
            starts.append(begin)
            ends.append(monotonic_ns())
    if rank == 0:
        report = {
            "losses": losses,
            "starts": starts,
            "ends": ends,
            "torch": torch.__version__,
            "nccl": None if options.cpu else list(torch.cuda.nccl.version()),
        }
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(report, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
