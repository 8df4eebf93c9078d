#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains dp_train's network data-parallel with the released PyTorch: its autograd engine, DistributedDataParallel and
process groups. A rank of a job, started as torchrun starts them."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import loop
import network


def ddp(given, layers):
    """Gradients go out in buckets while the backward pass runs. They are summed and not averaged, which takes no kernel
    of PyTorch's."""
    def sum_up(_state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    # Parameters start equal, so there is nothing to broadcast.
    size_mb = max(given.comm_mb, 0.001) * 1e6 / 2**20
    model = DistributedDataParallel(layers, init_sync=False, gradient_as_bucket_view=True,
                                    bucket_cap_mb=0.999 * size_mb / given.buckets)
    model.register_comm_hook(None, sum_up)

    def iteration(x, target):
        loss = network.SquaredError.apply(model(x), target)
        loss.backward()
        network.step(layers.parameters(), given.ranks)
        return loss

    return iteration


def all_reduce(given, layers):
    """By hand, a parameter after the other: PyTorch puts them onto the stream on which it computes."""
    def iteration(x, target):
        loss = network.SquaredError.apply(layers(x), target)
        loss.backward()
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad)
        network.step(layers.parameters(), given.ranks)
        return loss

    return iteration


# Name: (what trains, the process group's backend). PyTorch 2.15 has two; its newer one, the default, puts the compute stream
# behind each bucket at once, at least here, so that none is hidden.
PATTERNS = {
    "ddp": (ddp, "nccl"),
    "ddp_legacy_backend": (ddp, "nccl-legacy"),
    "all_reduce": (all_reduce, "nccl"),
}


def main():
    given = loop.options(PATTERNS, __doc__)
    meeting = loop.Meeting(given)
    train, backend = PATTERNS[given.pattern]
    dist.init_process_group(backend, store=dist.PrefixStore("group", meeting.store), rank=given.rank,
                            world_size=given.ranks)
    burner = loop.calibrated_burner(given, meeting)
    layers = network.network(burner, given.compute_ms, given.comm_mb)
    loop.run(given, meeting, burner, layers, train(given, layers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
