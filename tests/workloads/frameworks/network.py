# SPDX-License-Identifier: Apache-2.0
"""dp_train's network as modules of PyTorch: the same data, initial weights and kernels, so that a run ends with the same
losses and parameters to the last bit. Autograd, memory, streams and events are PyTorch's. No communication, no loop."""

import ctypes
import math
import os

import torch
from torch import nn

INPUTS, OUTPUTS, HIDDEN, LAYERS, BATCH, BATCHES = 16, 4, 32, 4, 16, 8
SEED, LEARNING_RATE, BURN_KERNEL_MS = 1, 0.05, 1.0

kernels = ctypes.CDLL(os.environ["DP_LAUNCH"])


# ---- kernels: dp_math.hpp's structures, and their launches on PyTorch's current stream

def structure(pointers, numbers, **others):
    fields = [(name, ctypes.c_void_p) for name in pointers.split()] + [(name, ctypes.c_int) for name in numbers.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields + list(others.items())})


FORWARD = structure("x w b y", "batch inputs outputs rectify")
LOSS = structure("y target dy sample_loss", "batch outputs")
LOSS_SUM = structure("sample_loss loss", "batch")
BACKWARD_WEIGHTS = structure("x dy dw db", "batch inputs outputs")
BACKWARD_DATA = structure("x w dy dx", "batch inputs outputs")
STEP = structure("w gradient", "", rate=ctypes.c_float, size=ctypes.c_int)
BURN = structure("sink", "", rounds=ctypes.c_ulonglong)


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def launch(name, kind, *values):
    plain = (value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values)
    getattr(kernels, f"dp_launch_{name}")(ctypes.byref(kind(*plain)), stream())


class Burner:
    """Device time without a purpose of its own, as dp_train's."""

    def __init__(self, per_ms):
        self.per_ms = per_ms  # rounds
        self.sink = torch.empty(1, device="cuda")
        self.blocks = 4 * torch.cuda.get_device_properties("cuda").multi_processor_count

    def launch(self, rounds):
        kernels.dp_launch_burn(self.blocks, ctypes.byref(BURN(self.sink.data_ptr(), rounds)), stream())

    def calibrate(self):
        """Finds how many rounds take a millisecond: the fastest of a few runs."""
        def measure(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.launch(rounds)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end)

        rounds = 1024
        while measure(rounds) < 5 and rounds < 1 << 40:
            rounds *= 2
        self.per_ms = max(rounds / measure(rounds) for _ in range(5))

    def burn(self, ms):
        number = int(ms / BURN_KERNEL_MS) + 1
        rounds = int(ms / number * self.per_ms)
        for _ in range(number if rounds else 0):
            self.launch(rounds)


# ---- data

class Random:
    """Uniform in [-1, 1), a function of the seed alone: splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def take(self, *shape):
        return torch.tensor([self.next() for _ in range(math.prod(shape))], dtype=torch.float32).reshape(shape)

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        z ^= z >> 31
        return (z >> 40) / (1 << 23) - 1


def data(part):
    """Pinned pairs of inputs and targets, which repeat; every `part` has its own. Targets are a fixed function."""
    teacher = Random(SEED + 1).take(OUTPUTS, INPUTS)
    random = Random(SEED + 1000 + part)
    pairs = []
    for _ in range(BATCHES):
        x = random.take(BATCH, INPUTS)
        target = torch.zeros(BATCH, OUTPUTS)
        for i in range(INPUTS):  # one after the other, as dp_train adds
            target += teacher[:, i] * x[:, i : i + 1]
        pairs.append((x.pin_memory(), target.pin_memory()))
    return pairs


# ---- the network

class Linear(torch.autograd.Function):
    """Where `below` is None the input needs no gradient."""

    @staticmethod
    def forward(ctx, x, layer, weights, bias, _padding):
        y = torch.empty(BATCH, weights.shape[0], device=x.device)
        launch("forward", FORWARD, x, weights, bias, y, BATCH, weights.shape[1], weights.shape[0], layer.rectify)
        layer.burner.burn(layer.forward_ms)
        ctx.save_for_backward(x, weights)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx, dy):
        (x, weights), layer = ctx.saved_tensors, ctx.layer
        dw, db, dx = torch.empty_like(weights), torch.empty(weights.shape[0], device=x.device), None
        sizes = BATCH, weights.shape[1], weights.shape[0]
        launch("backward_weights", BACKWARD_WEIGHTS, x, dy, dw, db, *sizes)
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            launch("backward_data", BACKWARD_DATA, x, weights, dy, dx, *sizes)
        layer.burner.burn(2 * layer.forward_ms)
        return dx, None, dw, db, layer.no_gradient


class SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, target):
        dy, each, loss = torch.empty_like(y), torch.empty(BATCH, device=y.device), torch.empty((), device=y.device)
        launch("loss", LOSS, y, target, dy, each, BATCH, OUTPUTS)
        launch("loss_sum", LOSS_SUM, each, loss, BATCH)
        ctx.dy = dy
        return loss

    @staticmethod
    def backward(ctx, _one):
        return ctx.dy, None


class Layer(nn.Module):
    """`padding`: a parameter of that many floats whose gradient is zero, so that there is more to communicate."""

    def __init__(self, inputs, outputs, rectify, random, padding, burner, forward_ms):
        super().__init__()
        scale = torch.sqrt(torch.tensor(6.0 / inputs))
        self.weights = nn.Parameter((random.take(outputs, inputs) * scale).cuda())
        self.bias = nn.Parameter(torch.zeros(outputs).cuda())
        self.padding = nn.Parameter(torch.zeros(padding).cuda()) if padding else None
        self.no_gradient = torch.zeros(padding).cuda() if padding else None
        self.rectify, self.burner, self.forward_ms = int(rectify), burner, forward_ms

    def forward(self, x):
        return Linear.apply(x, self, self.weights, self.bias, self.padding)


def network(burner, compute_ms, comm_mb):
    """All layers; their gradients together have comm_mb 10^6 bytes, or what they have where that is more."""
    random = Random(SEED)
    layers = []
    for at in range(LAYERS):
        inputs, outputs = HIDDEN if at else INPUTS, HIDDEN if at + 1 < LAYERS else OUTPUTS
        padding = max(0, int(comm_mb * 1e6 / 4 / LAYERS) - outputs * (inputs + 1))
        layers.append(Layer(inputs, outputs, at + 1 < LAYERS, random, padding, burner, compute_ms / 3 / LAYERS))
    return nn.Sequential(*layers)


def step(parameters, ranks):
    """By gradients that are sums over the ranks; they are gone then."""
    rate = (torch.tensor(LEARNING_RATE) / ranks).item()
    for parameter in parameters:
        launch("step", STEP, parameter, parameter.grad, rate, parameter.numel())
        parameter.grad = None


def parameters_hash(layers):
    value = 0xCBF29CE484222325
    for layer in layers:
        for parameter in (layer.weights, layer.bias):
            for byte in parameter.detach().cpu().numpy().tobytes():
                value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{value:016x}"
