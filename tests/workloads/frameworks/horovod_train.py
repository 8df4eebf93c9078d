#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains dp_train's network data-parallel with the released Horovod: its DistributedOptimizer, background thread, fusion
and finalizer threads. A rank of a job, started as torchrun starts them; its ranks meet by Gloo, as horovodrun's do."""

import os

import horovod.torch as hvd
import torch
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

import loop
import network

# Name: what it sets.
PATTERNS = {"horovod": {}, "horovod_async": {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}}


class Sgd(torch.optim.Optimizer):
    """dp_train's step, by gradients that are sums over the ranks."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        for group in self.param_groups:
            network.step(group["params"], hvd.size())


def join(given, meeting):
    """What horovodrun does for a rank."""
    port = 0
    if given.rank == 0:
        server = RendezvousServer()
        port = server.start()
        server.init(get_host_assignments(parse_hosts(f"localhost:{given.ranks}"), given.ranks))
    number, count = str(given.rank), str(given.ranks)
    os.environ.update(
        PATTERNS[given.pattern], HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_HOSTNAME="localhost",
        HOROVOD_RANK=number, HOROVOD_SIZE=count, HOROVOD_LOCAL_RANK=number, HOROVOD_LOCAL_SIZE=count,
        HOROVOD_CROSS_RANK="0", HOROVOD_CROSS_SIZE="1", HOROVOD_GLOO_IFACE="lo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1", HOROVOD_GLOO_RENDEZVOUS_PORT=str(meeting.all("port", port)[0]))
    hvd.init()


def main():
    given = loop.options(PATTERNS, __doc__)
    meeting = loop.Meeting(given)
    join(given, meeting)
    burner = loop.calibrated_burner(given, meeting)
    layers = network.network(burner, given.compute_ms, given.comm_mb)
    # Summed and not averaged, which takes no kernel of Horovod's.
    optimizer = hvd.DistributedOptimizer(Sgd(layers.parameters()), layers.named_parameters(), op=hvd.Sum)

    def iteration(x, target):
        loss = network.SquaredError.apply(layers(x), target)
        loss.backward()
        optimizer.step()
        return loss

    loop.run(given, meeting, burner, layers, iteration)
    hvd.shutdown()


if __name__ == "__main__":
    main()
