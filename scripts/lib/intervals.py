# SPDX-License-Identifier: Apache-2.0
"""Sets of half-open time intervals, and what the virtual GPU's truth log says of a job in them: how long it computed (C),
communicated (M) and communicated with nothing computing beside it (E). Pure: no clock, no process, no CUDA word."""

import json
from collections import defaultdict
from dataclasses import dataclass


def union(intervals):
    """Sorted, disjoint intervals covering the same points."""
    merged = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [tuple(i) for i in merged]


def clip(intervals, window):
    """The parts of intervals inside a (start, end) window."""
    return [(max(s, window[0]), min(e, window[1])) for s, e in intervals if min(e, window[1]) > max(s, window[0])]


def length(intervals):
    return sum(end - start for start, end in intervals)


def subtract(left, right):
    """What is in left and not in right; both unions."""
    rest, cuts, first = [], list(right), 0
    for start, end in left:
        while first < len(cuts) and cuts[first][1] <= start:
            first += 1
        k = first
        while k < len(cuts) and cuts[k][0] < end:
            if cuts[k][0] > start:
                rest.append((start, cuts[k][0]))
            start = max(start, cuts[k][1])
            k += 1
        if start < end:
            rest.append((start, end))
    return rest


@dataclass(frozen=True)
class Phases:
    """Times of one job per iteration, in ms, as measured."""

    compute: float
    communicate: float
    exposed: float


def read_truth(path):
    """{(device, pid): {kind: [(start_ns, end_ns)]}} of a truth log."""
    lanes = defaultdict(lambda: defaultdict(list))
    with open(path, encoding="utf-8") as log:
        for number, line in enumerate(log, 1):
            try:
                row = json.loads(line)
                lanes[row["device"], row["pid"]][row["kind"]].append((row["start_ns"], row["end_ns"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: not a line of a truth log ({error})") from None
    return lanes


def phases(lanes, pids, window, iterations):
    """Mean C, M and E per iteration over the devices of a job, from `iterations` iterations in the window. Processes of
    the job that share a device count as one there: what one computes while the other waits keeps the device busy."""
    devices, seen = defaultdict(lambda: ([], [])), set()
    for (device, pid), kinds in lanes.items():
        if pid in pids:
            seen.add(pid)
            for rows, kind in zip(devices[device], ("compute", "communicate")):
                rows.extend(clip(kinds[kind], window))
    if len(seen) != len(set(pids)):
        raise ValueError(f"the truth log knows {len(seen)} of the {len(set(pids))} processes {sorted(pids)}")
    totals = []
    for compute, communicate in (map(union, rows) for rows in devices.values()):
        totals.append((length(compute), length(communicate), length(subtract(communicate, compute))))
    scale = 1e6 * iterations * len(totals)
    return Phases(*(sum(column) / scale for column in zip(*totals)))


def iteration_ends(collectives, window, iterations):
    """When the last collective of each of a process's `iterations` in `window` ended, from all its collectives'
    intervals; empty where the iterations do not have as many each. The time of an iteration's end on the host is none
    that a neighbour leaves alone: its last few kernels run before a wait for the turn or after it."""
    ends = sorted(end for _, end in collectives if window[0] <= end <= window[1])
    each = len(ends) // iterations
    return ends[each - 1::each] if ends and len(ends) == each * iterations else []


def mean_period(ends, window):
    """Of those moments that lie in the window, in ms; None where these are fewer than three."""
    inside = [end for end in ends if window[0] <= end <= window[1]]
    return (inside[-1] - inside[0]) / 1e6 / (len(inside) - 1) if len(inside) >= 3 else None


def most_inside(intervals, span):
    """The most of a union that lies in any window of length `span`."""
    best = first = inside = 0
    for start, end in intervals:  # a window that ends with this one
        inside += end - start
        while intervals[first][1] <= end - span:
            inside -= intervals[first][1] - intervals[first][0]
            first += 1
        best = max(best, inside - max(0, end - span - intervals[first][0]))
    return best


def unfilled(intervals, part, other):
    """The most time of any window that begins in `part`, and is no longer, in which neither computes: not the job whose
    intervals these are, nor, however it lies, the one whose are `other`."""
    most = 0
    for first, (_, begin) in enumerate(intervals):
        if not part[0] <= begin < part[1]:
            continue
        inside = 0
        for start, end in intervals[first + 1:]:
            if start - begin > part[1] - part[0]:
                break
            if start - begin - inside > most:
                most = max(most, start - begin - inside - most_inside(other, start - begin))
            inside += end - start
    return most


def bound(jobs, shared_link):
    """T* of one iteration of each job, in ms; the jobs' communication adds up only where they share a link."""
    return max(
        sum(job.compute for job in jobs),
        sum(job.communicate for job in jobs) if shared_link else 0.0,
        max(job.compute + job.exposed for job in jobs),
    )
