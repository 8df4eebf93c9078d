# SPDX-License-Identifier: Apache-2.0
"""Checks that measure what the virtual GPU assumes: launches, gaps, time slices, MPS, NCCL's kernels and links. What
becomes of the figures stands in calibrate.py."""

import statistics

from machine import MachineError, monotonic_ns

from .runner import Skip, Wrong

KERNEL_MS = 0.2  # of the probe "slices"


def times(context):
    with context.machine("timeslice") as machine:
        found = context.probe(machine, "times")
    context.figures.save(**found)
    return (
        f"launch to done {found['launch_to_done_us']:.1f} us, gap {found['gap_us']:.2f} us, event "
        f"{found['event_record_to_done_us']:.1f} us, host function {found['host_function_us']:.1f} us"
    )


def taken_away(row, kernel_ms):
    """Times in ms for which the device was somebody else's, from the times between ends of short kernels: what is over
    the kernel's own time, where that is more than half of it. The first kernel is left out: it waits for its turn."""
    return [apart - kernel_ms for apart in row[1:] if apart > 1.5 * kernel_ms]


def slice_figures(rows, kernel_ms, wall_ms):
    """From two processes' rows: slices, and what is lost to switching. A process's slice is what the other lacks."""
    kernel = statistics.median(min(row[k] for row in rows) for k in range(1, min(map(len, rows))))
    away = [taken_away(row, kernel) for row in rows]
    found = {"kernel_ms": kernel, "times_taken_away": [len(gaps) for gaps in away]}
    gaps = [gap for gaps in away for gap in gaps]
    if gaps:
        found["slice_us"] = statistics.median(gaps) * 1e3
    work_ms = sum(len(row) for row in rows) * kernel
    found["share_of_wall_spent_working"] = work_ms / wall_ms
    if gaps:
        found["switch_us"] = max(0.0, (wall_ms - work_ms) / len(gaps) * 1e3)
    return found


def pair_of_slices(context, machine, kernels):
    """The rows of two processes with kernels back to back on one device, and the time both took together."""
    start = monotonic_ns() + (1_500_000_000 if context.virtual else 6_000_000_000)
    rounds = context.before.get("calibration.times")
    per_ms = rounds.figures.get("rounds_per_ms") if rounds else None
    own = ["--burn-per-ms", repr(per_ms)] if per_ms else []
    running = [
        context.start_probe(machine, "slices", "--iterations", kernels, "--start-at-ns", start, *own) for _ in range(2)
    ]
    try:
        found = [context.read_probe(process, "slices") for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    wall = (max(f["end_ns"] for f in found) - min(f["begin_ns"] for f in found)) / 1e6
    overlap = min(f["end_ns"] for f in found) - max(f["begin_ns"] for f in found)
    if overlap <= 0:
        raise Wrong("the two processes did not run at the same time")
    return [f["apart_ms"] for f in found], wall


def slices(context):
    """How long one process has the device while another wants it, without MPS."""
    kernels = 1500 if context.quick else 3000
    with context.machine("timeslice") as machine:
        rows, wall = pair_of_slices(context, machine, kernels)
    found = slice_figures(rows, KERNEL_MS, wall)
    context.figures.save(rows_ms=[[round(value, 4) for value in row[:1000]] for row in rows], wall_ms=wall, **found)
    if "slice_us" not in found:
        return "two processes were not seen to take turns: their kernels ran side by side"
    return (
        f"slices of {found['slice_us']:.0f} us, taken away {sum(found['times_taken_away'])} times, "
        f"{found['share_of_wall_spent_working']:.0%} of the time spent working"
    )


def mps(context):
    """Whether a private MPS daemon can be had, and what two processes then do to each other's kernels."""
    kernels = 1000
    try:
        with context.machine("mps") as machine:
            alone = context.probe(machine, "slices", "--iterations", kernels)["apart_ms"]
            rows, wall = pair_of_slices(context, machine, kernels)
    except (MachineError, OSError) as error:
        raise Skip(f"no MPS: {error}; all else runs time-sliced") from None
    kernel = statistics.median(alone)
    beside = statistics.median(rows[0] + rows[1])
    found = slice_figures(rows, KERNEL_MS, wall)
    context.figures.save(
        kernel_alone_ms=kernel,
        kernel_beside_ms=beside,
        slowdown=beside / kernel,
        wall_ms=wall,
        longest_apart_ms=max(map(max, rows)),
        times_taken_away=found["times_taken_away"],
    )
    return f"there; kernels beside another process's take {beside / kernel:.2f} times as long"


def footprint(path):
    """[(blocks, threads, name)] of NCCL's kernels from the interposer's log."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        blocks, threads, _, name = line.split("\t", 3)
        rows.append((int(blocks), int(threads), name))
    return sorted(set(rows))


def link(points):
    """(latency us, 10^9 bit/s) from times of all-reduces by size: the smallest's time, the slope of the two largest."""
    rows = sorted((p["bytes"], p["ms"]) for p in points)
    (low, low_ms), (high, high_ms) = rows[-2], rows[-1]
    slope = (high_ms - low_ms) / (high - low)
    return rows[0][1] * 1e3, 8 / slope / 1e6 if slope > 0 else None


def nccl(context):
    """NCCL between two ranks on the device: time by size, kernel size by NCCL_MAX_CTAS, what a waiting kernel takes."""
    found = {}
    for ctas in ("default", "1", "2", "8")[: 2 if context.quick else None]:
        with context.machine() as machine:
            log = machine.folder / "kernels"
            # NCCL's own default: nothing set.
            variables = {"QUALIFY_LOG": str(log), "NCCL_MAX_CTAS": "" if ctas == "default" else ctas}
            point = context.probe(
                machine, "nccl", ranks=2, preload=[context.kit.interposer], variables=variables, limit_s=60
            )
            point["kernels"] = [
                {"blocks": blocks, "threads": threads, "name": name} for blocks, threads, name in footprint(log)
            ]
        latency, gbps = link(point["all_reduce"])
        point.update(latency_us=latency, link_gbps=gbps)
        blocks = [kernel["blocks"] for kernel in point["kernels"]]
        point["blocks"] = max(blocks) if blocks else None
        if point["beside_samples"]:
            point["slowdown_beside"] = point["compute_beside_waiting_ms"] / point["compute_alone_ms"]
        found[ctas] = point
        context.figures.save(by_max_ctas=found)
    told = found["default"]
    if told["blocks"] is None:
        raise Wrong("no kernel of NCCL was seen")
    bandwidth = f"{told['link_gbps']:.1f} Gbit/s" if told["link_gbps"] else "bandwidth not to be told from noise"
    return (
        f"NCCL {told['nccl_version']}: {told['blocks']} blocks on {told['multiprocessors']} multiprocessors, latency "
        f"{told['latency_us']:.0f} us, {bandwidth}; compute beside a waiting kernel "
        f"{told.get('slowdown_beside', float('nan')):.3f} times as long"
    )
