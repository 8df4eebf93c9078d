#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each collective of Horovod's on GPU tensors, with values that differ by rank, and no kernel of PyTorch's: a rank
prints what it got, a line each. Run by scripts/check-horovod; no test here."""

import time

import horovod.torch as hvd
import torch

PAUSE_S = 1.0  # after the first collective, with which the library joins: for who wants to look on from there


def main():
    hvd.init()
    rank = hvd.rank()
    torch.cuda.set_device(hvd.local_rank())

    def on_gpu(*values):
        return torch.tensor(values).cuda()

    def say(what, *tensors):
        print(f"rank {rank} {what} {[tensor.cpu().tolist() for tensor in tensors]}", flush=True)

    for step in range(20):
        say(f"sum {step}", hvd.allreduce(on_gpu(1.0 + rank, 2.0 + rank, step), op=hvd.Sum, name="sum"))
        if step == 0:
            time.sleep(PAUSE_S)
    say("mean", hvd.allreduce(on_gpu(1.0 + rank, 2.0 + rank), op=hvd.Average))
    say("several", *hvd.grouped_allreduce([on_gpu(1.0 + rank), on_gpu(5.0, 6.0)], op=hvd.Sum))
    say("all", hvd.allgather(on_gpu(1.0 + rank)))
    say("of rank 1", hvd.broadcast(on_gpu(1.0 + rank), 1))
    say("part", hvd.reducescatter(on_gpu(1.0 + rank, 2.0), op=hvd.Sum))
    say("exchanged", hvd.alltoall(on_gpu(1.0 + rank, 2.0 + rank)))
    hvd.shutdown()


if __name__ == "__main__":
    main()
