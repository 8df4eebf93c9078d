# SPDX-License-Identifier: Apache-2.0
"""PyTorch data-parallel training on CPUs over gloo, with data-loader workers: prints each rank's losses to the last
bit. Run by torchrun. scripts/real-programs compares its output with and without the preloaded library."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    """Points of a plane, made in the worker."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, generator=generator)
        return x, x.sum().view(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = DistributedSampler(Points(), shuffle=True, seed=3)
    loader = DataLoader(Points(), batch_size=16, sampler=sampler, num_workers=2)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()).hex())
    line = f"rank {dist.get_rank()}: cuda {torch.cuda.is_available()}: {' '.join(losses)}\n"
    os.write(1, line.encode())  # at once: the ranks share the output
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
