# SPDX-License-Identifier: Apache-2.0
"""Judges communication windows: those that the library inferred (its events) against those that there were (the virtual
GPU's truth log). Pure: no clock, no process, no file but through read_…(). docs/windows.md
says what each figure means. Times are ns on CLOCK_MONOTONIC."""

import json
import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import accumulate

from intervals import clip, length, subtract, union

# Work that was submitted in time follows what is before it within launch latency and gap of the model (some us). Such a
# seam belongs to the work around it: what was submitted has not finished.
SEAM_NS = 20_000
# So long after a standstill of the machine its threads may still be late.
SETTLE_NS = 1_000_000


@dataclass(frozen=True)
class Operation:
    """A line of the truth log."""

    kind: str  # compute, copy, communicate
    stream: int
    start: int
    end: int
    number: int = 0  # its process's


@dataclass
class Truth:
    """What one process really did on one device; unions of intervals."""

    compute: list  # not NCCL's, nor of a communication stream
    windows: list  # a collective in flight and no compute


@dataclass
class Events:
    """What the library said of one process on one device."""

    windows: list = field(default_factory=list)  # (open, close)
    given: list = field(default_factory=list)  # when this client gave the turn back for its job
    least: list = field(default_factory=list)  # (from when, how long a window must last to be worth a turn)
    job: str = ""
    standstills: list = field(default_factory=list)  # of one of the machine's processors; the same for all clients

    def least_ns(self, at, usual_ns):
        """What a window that began at `at` had to last: at least usual_ns, the option's, and what the library said."""
        index = bisect_right(self.least, (at, math.inf)) - 1
        return max(usual_ns, self.least[index][1]) if index >= 0 else usual_ns


@dataclass
class Verdict:
    """Figures of one client, or of several added up (see add_up)."""

    true_windows: int = 0  # worth a turn: at least the least length
    true_ns: int = 0
    short_windows: int = 0
    short_ns: int = 0
    inferred_windows: int = 0
    inferred_ns: int = 0
    right_ns: int = 0  # inferred, and a window of any length
    found_ns: int = 0  # of true_ns
    missed: int = 0  # worth a turn, and nothing was inferred in it
    false_opens: int = 0  # opened while the job's own compute ran
    set_aside: int = 0  # true windows in which, or shortly before which, the machine stood still: not judged
    late_opens: int = 0  # the same, but soon after a window in which nothing was open
    given_back: int = 0  # windows worth a turn in which the turn was given back
    short_given: int = 0  # the same of short ones
    latencies_ns: list = field(default_factory=list)  # of each window worth a turn; of a missed one, its whole length

    @property
    def precision(self):
        return self.right_ns / self.inferred_ns if self.inferred_ns else math.nan

    @property
    def recall(self):
        return self.found_ns / self.true_ns if self.true_ns else math.nan

    def latency_ns(self, part):
        """The smallest latency that at least this part of the windows keep to."""
        row = sorted(self.latencies_ns)
        return row[max(0, math.ceil(part * len(row)) - 1)] if row else math.nan


def read_operations(path):
    """{(device, pid): [Operation]} of a truth log."""
    clients = defaultdict(list)
    with open(path, encoding="utf-8") as log:
        for number, line in enumerate(log, 1):
            try:
                row = json.loads(line)
                client = row["device"], row["pid"]
                clients[client].append(
                    Operation(row["kind"], row["stream"], row["start_ns"], row["end_ns"], row["op"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: not a line of a truth log ({error})") from None
    return clients


def read_shown(path):
    """{number: when the process could first see that this operation had ended}, of what a process on the virtual GPU wrote
    with SIMGPU_SHOWN=1."""
    shown = {}
    with open(path, encoding="utf-8") as log:
        for number, line in enumerate(log, 1):
            try:
                row = json.loads(line)
                shown[row["op"]] = row["shown_ns"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: not a line of a log of what was shown ({error})") from None
    return shown


def as_shown(operations, shown):
    """The operations of one process as it could see them at all: each ends when that was shown (of what is not in `shown`,
    when it did), and begins no sooner than the end was shown of all that had ended before it began."""
    ends = sorted((op.end, max(op.end, shown.get(op.number, op.end))) for op in operations)
    latest = list(accumulate((seen for _, seen in ends), max))
    moved = []
    for op in operations:
        before = bisect_right(ends, (op.start, math.inf))
        start = max(op.start, latest[before - 1]) if before else op.start
        moved.append(replace(op, start=start, end=max(op.end, shown.get(op.number, op.end), start)))
    return moved


def seamless(intervals, seam_ns=SEAM_NS):
    """The union, with gaps of at most seam_ns filled."""
    return [(s, e - seam_ns) for s, e in union([(s, e + seam_ns) for s, e in intervals if e > s])]


def communication_streams(operations):
    """Streams with collectives that carry less than half of the launches: their kernels (packing, casts) belong to the
    collectives, as docs/design.md has it."""
    launches, collectives = defaultdict(int), set()
    for op in operations:
        if op.kind == "compute":
            launches[op.stream] += 1
        elif op.kind == "communicate":
            collectives.add(op.stream)
    return {stream for stream in collectives if 2 * launches[stream] < sum(launches.values())}


def true_windows(operations):
    """Truth of one client."""
    beside = communication_streams(operations)
    compute, communicate = [], []
    for op in operations:
        if op.kind == "communicate" or op.kind == "compute" and op.stream in beside:
            communicate.append((op.start, op.end))
        elif op.kind == "compute":
            compute.append((op.start, op.end))
    return Truth(union(compute), subtract(seamless(communicate), seamless(compute)))


def read_events(lines):
    """({(ordinal, pid): Events}, [(from_ns, to_ns) in which events were lost]) of what windows_events printed."""
    clients, open_since, lost, gap_from, standstills = defaultdict(Events), {}, [], {}, []
    last_ns = 0
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if "stood_still_ns" in row:
                standstills.append((row["stood_still_ns"], row["until_ns"]))
                continue
            if "lost" in row:
                gap_from[row["device"]] = row["from_ns"]
                continue
            client, kind, now = (row["ordinal"], row["pid"]), row["kind"], row["time_ns"]
            if row["device"] in gap_from:
                lost.append((gap_from.pop(row["device"]), now))
            last_ns = max(last_ns, now)
            if client[1] is None:
                continue
            events = clients[client]
            if kind == "window_open":
                open_since[client] = now
            elif kind in ("window_close", "detach", "reap") and client in open_since:
                events.windows.append((open_since.pop(client), now))
            elif kind == "release":
                events.given.append(now)
            elif kind == "least_window":
                events.least.append((now, row["value"]))
            if kind in ("attach", "compute", "window_open"):
                events.job = row["job"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"event {number}: not a line of windows_events ({error})") from None
    for client, since in open_since.items():
        clients[client].windows.append((since, last_ns))
    for events in clients.values():
        events.windows.sort()
        events.least.sort()
        events.standstills = union(standstills)
    return dict(clients), lost


def count_false(verdict, truth, opens, late_ns):
    """An opening inside compute is late where a window without one ended within late_ns before it, else false."""
    compute, windows = iter(truth.compute), iter(truth.windows)
    running, before, following = next(compute, None), None, next(windows, None)
    last = -1  # the opening before this one
    for opened in opens:
        while running and running[1] <= opened:
            running = next(compute, None)
        while following and following[1] <= opened:
            before, following = following, next(windows, None)
        if running and running[0] < opened:
            late = before is not None and opened - before[1] <= late_ns and last < before[0]
            verdict.late_opens += late
            verdict.false_opens += not late
        last = opened


def set_aside(standstills, *rows):
    """Intervals around the standstills in which nothing is judged: whatever of the rows' intervals they touch, whole, and
    whatever that touches. A standstill may delay what comes within SETTLE_NS after it."""
    aside = union((start, end + SETTLE_NS) for start, end in standstills)
    touching = [interval for row in rows for interval in row]
    while True:
        more = [i for i in touching if any(i[0] < end and i[1] > start for start, end in aside)]
        wider = union([*aside, *more])
        if wider == aside:
            return aside
        aside = wider


def judge(truth, events, span, least_ns, late_ns=0):
    """Verdict of one client over the time `span`. Windows count where they lie wholly in it; time is cut to it.
    `least_ns`: how long a window must last to be worth a turn, where the events do not say more.
    `late_ns`: for a job that nothing holds back, whose compute goes on before anybody can have seen a window's end."""
    verdict = Verdict()
    inferred = clip(union(events.windows), span)
    windows = clip(truth.windows, span)
    aside = set_aside([s for s in events.standstills if s[0] < span[1] and s[1] > span[0]], inferred, windows)
    verdict.set_aside = sum(any(start < until and end > since for since, until in aside) for start, end in windows)
    inferred, windows = subtract(inferred, aside), subtract(windows, aside)
    needed = {start: events.least_ns(start, least_ns) for start, _ in windows}
    worth = [w for w in windows if w[1] - w[0] >= needed[w[0]]]
    verdict.inferred_windows = len(inferred)
    verdict.inferred_ns = length(inferred)
    verdict.right_ns = length(inferred) - length(subtract(inferred, windows))
    verdict.true_ns = length(worth)
    verdict.found_ns = length(worth) - length(subtract(worth, inferred))
    count_false(verdict, truth, [start for start, _ in events.windows if span[0] <= start < span[1]], late_ns)
    first = 0
    for start, end in windows:
        while first < len(inferred) and inferred[first][1] <= start:
            first += 1
        found = first < len(inferred) and inferred[first][0] < end
        given = any(start <= time < end for time in events.given)
        if end - start < needed[start]:
            verdict.short_windows += 1
            verdict.short_ns += end - start
            verdict.short_given += given
            continue
        if start <= span[0] or end >= span[1]:
            continue
        verdict.true_windows += 1
        verdict.given_back += given
        verdict.missed += not found
        verdict.latencies_ns.append(max(0, inferred[first][0] - start) if found else end - start)
    return verdict


def add_up(verdicts):
    """One verdict over several clients or runs."""
    total = Verdict()
    for verdict in verdicts:
        for name, value in vars(verdict).items():
            setattr(total, name, getattr(total, name) + value)
    return total
