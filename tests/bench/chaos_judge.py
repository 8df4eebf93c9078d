# SPDX-License-Identifier: Apache-2.0
"""Judges a chaos run by the virtual GPU's truth log: when did compute of two jobs run on one device at the same time,
and may it have? The event ring says only what is excused: which turn a kernel was submitted under, and how that ended.
Pure."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field

MS = 1_000_000
NEVER = 1 << 63
# An early notice of the device's, and the reading of two clocks one after the other.
CLOCK_NS = MS
# A fill is a short kernel to the truth log; the programs here fill memory only before their first launch.
MEMORY_NS = 20_000
# How long a job that had a device to itself may go on before it has heard of the other. A stopped one hears nothing.
HEARING_NS = 500 * MS
# What a piece of compute that passed without a turn may take (SmallPieces::kLongestNs), beside another job's compute,
# by which it takes twice as long.
SMALL_NS = 2 * MS
# The recorder finds out that events were lost a little after they were.
LATE_RECORD_NS = 100 * MS

EXCUSES = {
    "own turn": "submitted and run under the job's own turn",
    "memory": "a short kernel before a process's first longer one: filled memory, which is never held",
    "lease tail": "submitted under a turn that ended by its lease or its holder's death; what was submitted runs on",
    "under way": "the one launch that had passed the gate when the lease ended its turn",
    "small piece": "passed without a turn, said so, and took no longer than handing the turn over",
    "long piece": "passed as a small piece and turned out long, the one before it having been short",
    "clock": "given back at the end of its compute, within the precision of the device's notices",
    "alone": "submitted while no other job was there",
    "told late": "submitted before the job could hear that another had come",
    "left": "submitted under a turn of a segment that was given up or damaged",
    "ungated": "the job has said in its log that it goes on without turns",
    "unclear": "the recorder lost events just then",
    "GIVEN BACK TOO EARLY": "submitted under a turn that was given back while it ran",
    "NO TURN": "submitted without a turn while another job was there",
}
BROKEN = ("GIVEN BACK TOO EARLY", "NO TURN")


@dataclass
class Subject:
    """A job as the judge knows it. `pids`: (process id, from ns, to ns), since numbers come again."""

    name: str
    pids: list
    names: tuple = ()  # as which it may go in the segment
    long_lived: bool = False
    stops: list = field(default_factory=list)  # (pid, from ns, to ns)
    ungated: bool = False  # its log says so


@dataclass
class Turn:
    key: str
    start: int
    end: int = NEVER
    how: str = "open"  # release, expire, reap, lost, damaged


@dataclass
class Segment:
    """One file of a device as its ring tells: turns, and which jobs were attached when."""

    device: str
    opened: int
    turns: list = field(default_factory=list)
    attached: list = field(default_factory=list)  # [key, pid, from, to]
    waits: list = field(default_factory=list)  # [key, from, to]
    passed: list = field(default_factory=list)  # (key, at) of small pieces without a turn
    lost: list = field(default_factory=list)
    closed: int = NEVER
    double: int = 0  # grants while another job had the turn
    expired: int = 0
    reaped: int = 0


def read_ring(lines):
    """(segments by file number, {key: name})."""
    segments, names, clients, waiting = {}, {}, {}, {}
    reaped = {}  # file number: (key, at) of the last one
    for line in lines:
        row = json.loads(line)
        kind, at, number = row["kind"], row["time_ns"], row["file"]
        if kind == "open":
            segments[number] = Segment(row["device"], at)
            continue
        segment = segments[number]
        turn = segment.turns[-1] if segment.turns and segment.turns[-1].end == NEVER else None
        if kind == "name":
            names[row["key"]] = row["name"]
        elif kind in ("damaged", "given_up"):
            segment.closed = min(segment.closed, at)
            if turn:
                turn.end, turn.how = at, "damaged"
        elif kind == "lost":
            segment.lost.append(at)
            if turn:
                turn.end, turn.how = at, "lost"
        elif kind == "attach":
            if place := clients.get((number, row["client"])):  # now as a client of another job
                place[3] = at
            clients[number, row["client"]] = place = [row["key"], row["value"], at, NEVER]
            segment.attached.append(place)
        elif kind in ("detach", "reap"):
            segment.reaped += kind == "reap"
            if kind == "reap":
                reaped[number] = row["key"], at
            place = clients.pop((number, row["client"]), None)
            if place:
                place[3] = at
        elif kind == "passed":
            segment.passed.append((row["key"], at))
        elif kind == "wait":
            waiting[number, row["key"]] = wait = [row["key"], at, NEVER]
            segment.waits.append(wait)
        elif kind == "grant":
            if turn:
                segment.double += turn.key != row["key"]
                turn.end, turn.how = at, "granted over"
            segment.turns.append(Turn(row["key"], at))
            if wait := waiting.pop((number, row["key"]), None):
                wait[2] = at
        elif kind in ("release", "expire") and turn and turn.key == row["key"]:
            # The same transition that finds its last holder dead ends its turn.
            turn.end, turn.how = at, "reap" if reaped.get(number) == (row["key"], at) else kind
            segment.expired += kind == "expire"
    return segments, names


def read_compute(lines):
    """[(device, pid, submitted, start, end)] of all compute in a truth log."""
    rows = []
    for line in lines:
        if '"compute"' in line:
            row = json.loads(line)
            rows.append((row["device"], row["pid"], row["submit_ns"], row["start_ns"], row["end_ns"]))
    return rows


class Owners:
    """Whose a process id was at a time, and whose a key of the segment is."""

    def __init__(self, subjects, segments, names):
        self.by_pid = defaultdict(list)
        by_name = {}
        for subject in subjects:
            for pid, start, end in subject.pids:
                self.by_pid[pid].append((start, end, subject))
            by_name.update({name: subject for name in subject.names})
        self.named = {key: by_name[name] for key, name in names.items() if name in by_name}
        # Unnamed jobs go by their first rank's address, whose port a later one may have again.
        self.attached = defaultdict(list)  # key: [(from ns, subject)]
        for segment in segments.values():
            for key, pid, start, _ in segment.attached:
                if owner := self.of_pid(pid, start):
                    self.attached[key].append((start, owner))
        for rows in self.attached.values():
            rows.sort(key=lambda row: row[0])

    def of_key(self, key, at):
        if owner := self.named.get(key):
            return owner
        rows = self.attached.get(key, ())
        return next((owner for start, owner in reversed(rows) if start <= at), rows[0][1] if rows else None)

    def of_pid(self, pid, at):
        return next((subject for start, end, subject in self.by_pid.get(pid, ()) if start <= at <= end), None)


class DeviceHistory:
    """All turns and presences on one device, over all its files."""

    def __init__(self, segments, owners):
        self.segments = segments
        self.turns = defaultdict(list)  # subject name: [(start, end, how, stamp)]
        self.present = defaultdict(list)
        self.passed = defaultdict(list)  # subject name: [at]
        self.lost = sorted(at for segment in segments for at in segment.lost)
        for segment in segments:
            for turn in segment.turns:
                if owner := owners.of_key(turn.key, turn.start):
                    self.turns[owner.name].append((turn.start, min(turn.end, segment.closed), turn.how))
            for key, at in segment.passed:
                if owner := owners.of_key(key, at):
                    self.passed[owner.name].append(at)
            for key, _, start, end in segment.attached:
                if owner := owners.of_key(key, start):
                    self.present[owner.name].append((start, min(end, segment.closed), segment))
        for rows in (*self.turns.values(), *self.present.values()):
            rows.sort(key=lambda row: row[:2])
        for rows in self.passed.values():
            rows.sort()
        self.small_ns = Counter()  # (subject name, at): what has been seen of that piece
        self.starts = {name: [row[0] for row in rows] for name, rows in self.turns.items()}

    def last_turn(self, name, at):
        """The newest turn of a job that began before `at`, or None."""
        index = bisect_right(self.starts.get(name, ()), at + CLOCK_NS)
        return self.turns[name][index - 1] if index else None

    def small_piece(self, name, turn, submitted, length_ns):
        """Why a kernel that was submitted after the job's turn `turn` may have passed without one, or None."""
        rows = self.passed.get(name, ())
        index = bisect_right(rows, submitted + CLOCK_NS) - 1
        if index < 0 or turn and rows[index] < turn[0]:
            return None
        self.small_ns[name, rows[index]] += length_ns
        if self.small_ns[name, rows[index]] <= SMALL_NS:
            return "small piece"
        before = self.small_ns[name, rows[index - 1]] if index else 0
        return "long piece" if before <= SMALL_NS else None

    def turn_before(self, name, at):
        """As last_turn(), to the nanosecond."""
        index = bisect_right(self.starts.get(name, ()), at)
        return self.turns[name][index - 1] if index else None

    def others(self, name, at):
        """Since when another job has been there without a pause, or None: it is alone."""
        spans = sorted((start, end) for other, rows in self.present.items() if other != name for start, end, _ in rows
                       if start <= at)
        since, until = None, 0
        for start, end in spans:
            if since is None or start > until:
                since = start
            until = max(until, end)
        return since if since is not None and until >= at else None


def stopped_within(subject, start, end):
    """ns within (start, end) in which some process of the job was stopped."""
    cuts = sorted((max(s, start), min(e, end)) for _, s, e in subject.stops if min(e, end) > max(s, start))
    total, until = 0, start
    for s, e in cuts:
        total += max(0, e - max(s, until))
        until = max(until, e)
    return total


def classify(history, subject, submitted, start, end, under_way):
    """[(from when, why)] of one kernel: the first entry from its start on. `under_way`: a set kept by the caller.
    Kernels are to come in the order of their submission."""
    name = subject.name
    turn = history.last_turn(name, submitted)
    if turn and turn[0] > submitted:  # just before it
        if small := history.small_piece(name, history.turn_before(name, submitted), submitted, end - start):
            return [(0, small)]
    if turn and submitted <= turn[1] + (CLOCK_NS if turn[2] == "expire" else 0):
        rest = {"expire": "lease tail", "lost": "unclear", "damaged": "left", "reap": "lease tail",
                "granted over": "NO TURN", "open": "own turn"}.get(turn[2])
        if turn[2] == "release":
            rest = "clock" if end <= turn[1] + CLOCK_NS else "GIVEN BACK TOO EARLY"
        return [(0, "own turn"), (turn[1], rest)]
    if small := history.small_piece(name, turn, submitted, end - start):
        return [(0, small)]
    if subject.ungated:
        return [(0, "ungated")]
    since = history.others(name, submitted)
    if since is None:
        return [(0, "alone")]
    # Who joins beside others knows of them from the start.
    was_there = any(begin < since <= until for begin, until, _ in history.present.get(name, ()))
    hearing = HEARING_NS + stopped_within(subject, since, submitted)
    if was_there and (turn is None or turn[1] <= since) and submitted - since <= hearing:
        return [(0, "told late")]
    if turn and turn[2] == "expire" and (name, turn[:2]) not in under_way:
        under_way.add((name, turn[:2]))
        return [(0, "under way")]
    if any((turn[1] if turn else since) <= at <= submitted + LATE_RECORD_NS for at in history.lost):
        return [(0, "unclear")]
    return [(0, "NO TURN")]


@dataclass
class Verdict:
    excused: dict = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))  # why: [times, ns, longest ns]
    broken: list = field(default_factory=list)  # texts
    double_grants: int = 0
    kernels: int = 0
    unknown: int = 0
    together_ns: int = 0
    computed_ns: int = 0
    expired: int = 0
    reaped: int = 0
    lost_events: int = 0


def sweep(pieces, verdict, device):
    """Time with compute of two jobs, by what excuses it. `pieces`: (start, end, job, why) of one device."""
    edges = sorted([(start, 1, job, why) for start, end, job, why in pieces if end > start] +
                   [(end, 0, job, why) for start, end, job, why in pieces if end > start])
    active = defaultdict(Counter)
    before, current = 0, {}
    for at, begins, job, why in edges:
        if at > before:
            busy = [name for name, kinds in active.items() if kinds]
            verdict.computed_ns += (at - before) if busy else 0
            reasons = Counter()
            if len(busy) > 1:
                verdict.together_ns += at - before
                holders = [name for name in busy if active[name]["own turn"]]
                rest = [name for name in busy if name not in holders]
                if not holders:  # one of them needs no excuse
                    rest.sort(key=lambda name: any(kind in BROKEN for kind in active[name]))
                    rest = rest[1:]
                reasons.update((name, worst(active[name])) for name in rest)
                if len(holders) > 1:
                    reasons.update((name, "NO TURN") for name in holders[1:])
            for key in [key for key in current if key not in reasons]:
                note(verdict, device, *key, current.pop(key), before)
            for key in reasons:
                current.setdefault(key, before)
            before = at
        if begins:
            active[job][why] += 1
        else:
            active[job][why] -= 1
            active[job] += Counter()
            if not active[job]:
                del active[job]
    for key, since in current.items():
        note(verdict, device, *key, since, before)


def worst(kinds):
    return max((kind for kind in kinds if kinds[kind]), key=list(EXCUSES).index)


def note(verdict, device, name, why, start, end):
    entry = verdict.excused[why]
    entry[0] += 1
    entry[1] += end - start
    entry[2] = max(entry[2], end - start)
    if why in BROKEN:
        verdict.broken.append(f"device {device}: {name} computed beside another job for {(end - start) / MS:.3f} ms "
                              f"from {start} ns: {EXCUSES[why]}")


def device_numbers(segments, compute, owners):
    """{uuid: number in the truth log}, by the processes that are in both."""
    seen = defaultdict(set)
    for device, pid, _, start, _ in compute:
        if owner := owners.of_pid(pid, start):
            seen[owner.name, pid].add(device)
    votes = defaultdict(Counter)
    for segment in segments.values():
        for key, pid, start, _ in segment.attached:
            owner = owners.of_pid(pid, start) or owners.of_key(key, start)
            devices = seen.get((owner.name, pid), set()) if owner else set()
            if len(devices) == 1:
                votes[segment.device].update(devices)
    return {uuid: count.most_common(1)[0][0] for uuid, count in votes.items()}


def histories(subjects, segments, names, compute):
    """{device number: DeviceHistory}."""
    owners = Owners(subjects, segments, names)
    numbers = device_numbers(segments, compute, owners)
    found = {}
    for uuid, number in numbers.items():
        mine = [segment for segment in segments.values() if segment.device == uuid]
        found[number] = DeviceHistory(mine, owners)
    return owners, found


def judge(subjects, segments, names, compute):
    verdict = Verdict()
    owners, found = histories(subjects, segments, names, compute)
    pieces = defaultdict(list)
    under_way = defaultdict(set)
    launched = set()  # (device, pid, job)
    for device, pid, submitted, start, end in sorted(compute, key=lambda row: row[2]):
        verdict.kernels += 1
        subject = owners.of_pid(pid, submitted)
        if subject is None or device not in found:
            verdict.unknown += 1
            continue
        process = (device, pid, subject.name)
        if end - start > MEMORY_NS:
            launched.add(process)
        if process in launched:
            parts = classify(found[device], subject, submitted, start, end, under_way[device])
        else:
            parts = [(0, "memory")]
        for index, (since, why) in enumerate(parts):
            until = parts[index + 1][0] if index + 1 < len(parts) else end
            pieces[device].append((max(start, since), min(end, until), subject.name, why))
    for device, rows in sorted(pieces.items()):
        sweep(rows, verdict, device)
    for segment in segments.values():
        verdict.double_grants += segment.double
        verdict.expired += segment.expired
        verdict.reaped += segment.reaped
        verdict.lost_events += len(segment.lost)
    return verdict
