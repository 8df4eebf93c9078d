# SPDX-License-Identifier: Apache-2.0
"""The cells of the efficiency grid: which jobs, devices, nodes and links. One thing at a time varies around a centre,
and some corners. Pure: what is asked for and what follows from it; nothing is run or measured here.
docs/efficiency.md."""

from dataclasses import dataclass, replace

from job import Workload

LINK_GBPS = 0.1  # slow, so that small buffers last long and copying them costs this machine little
LAYERS = 4  # of the programs' network, unless more buckets are asked for
WARMUP = 4
RATIOS = ("10:1", "5:1", "3:1", "2:1", "1:1", "1:2")  # C:M, the columns of the map
# Bytes that a pattern hands to others for each byte that its --comm-mb asks for.
PATTERN_BYTES = {"fsdp": 1.5}


@dataclass(frozen=True)
class AskedJob:
    """Per iteration, alone: compute C and communication M in ms, the latter in buckets beside the backward pass if
    there are several. `pattern`: how the work is submitted (tests/workloads/patterns); empty: dp_train."""

    compute_ms: float
    communicate_ms: float
    buckets: int = 1
    pattern: str = ""

    @property
    def layers(self):
        return max(LAYERS, self.buckets)

    def workload(self, ranks, iterations, compute_part=1.0):
        """What the program is asked for, so that a ring of `ranks` communicates as long over LINK_GBPS."""
        link_bytes = self.communicate_ms * LINK_GBPS * 1e6 / 8
        megabytes = link_bytes / (2 * (ranks - 1) / ranks) / 1e6 / PATTERN_BYTES.get(self.pattern, 1.0)
        extra = (*(("--pattern", self.pattern) if self.pattern else ()), "--layers", str(self.layers))
        return Workload(self.compute_ms * compute_part, megabytes, iterations, WARMUP, self.buckets, self.buckets > 1,
                        ranks, extra=extra)

    @property
    def first_bucket(self):
        """Part of C after which dp_train submits its first bucket: a third is forward, the rest backward by layers."""
        first = next(at for at in range(self.layers) if (at + 1) * self.buckets // self.layers > 0)
        return 1 / 3 + 2 / 3 * (first + 1) / self.layers if self.buckets > 1 else 1.0

    @property
    def exposed_ms(self):
        """E: what is left of M once C is through, collectives one after the other."""
        end, each = 0.0, self.communicate_ms / self.buckets
        for bucket in range(self.buckets):
            place = self.first_bucket + (1 - self.first_bucket) * bucket / max(1, self.buckets - 1)
            end = max(end, place * self.compute_ms) + each
        return end - self.compute_ms

    @property
    def alone_ms(self):
        return self.compute_ms + self.exposed_ms

    @property
    def text(self):
        words = f"{self.pattern or 'dp_train'} {self.compute_ms:g}/{self.communicate_ms:g}"
        return words + (f" in {self.buckets}" if self.buckets > 1 else "")


@dataclass(frozen=True)
class Cell:
    """`row`, `column`: its place in the heat map; a cell without a column stands by itself, under its row's title."""

    name: str
    row: str
    jobs: tuple
    column: str = ""
    devices: int = 2  # of each node
    nodes: int = 1
    shared_link: bool = False
    timesliced: bool = False  # is run under time slices as well
    quick: bool = False

    @property
    def ranks(self):
        # A lone rank would not communicate: two on one device.
        return max(2, self.devices * self.nodes)

    @property
    def ranks_a_device(self):
        return self.ranks // (self.devices * self.nodes)

    def asked_bound_ms(self):
        return max(sum(job.compute_ms for job in self.jobs),
                   sum(job.communicate_ms for job in self.jobs) if self.shared_link else 0.0,
                   max(job.alone_ms for job in self.jobs))

    def workloads(self, target_ms, least):
        """One for each job. Together they run for about target_ms and at least `least` iterations; a job that is
        shorter alone makes more of them, so that all end at about one time whether or not they keep step."""
        slowest = max(job.alone_ms for job in self.jobs)
        count = max(least, round(target_ms / self.asked_bound_ms()))
        return [job.workload(self.ranks, round(count * min(4.0, slowest / job.alone_ms)), 1 / self.ranks_a_device)
                for job in self.jobs]

    @property
    def text(self):
        kinds = [job.text for job in self.jobs]
        jobs = f"{len(kinds)} x {kinds[0]}" if len(set(kinds)) == 1 else " + ".join(kinds)
        where = f"{self.devices} device" + "s" * (self.devices > 1)
        if self.nodes > 1:
            where = f"{self.nodes} nodes of {self.devices}"
        return f"{jobs}, {where}, {'one link' if self.shared_link else 'own links'}"


def job_of_ratio(ratio, total_ms=60.0, buckets=1):
    compute, communicate = map(float, ratio.split(":"))
    unit = total_ms / (compute + communicate)
    return AskedJob(round(compute * unit, 3), round(communicate * unit, 3), buckets)


CENTRE = job_of_ratio("2:1")
IN_FOUR = replace(CENTRE, buckets=4)
PATTERNS = ("ddp_sync", "fsdp", "tensor_parallel", "pipeline", "horovod_blocking", "multi_stream")


def map_cells():
    """(title of the row, jobs, buckets, shared link, ratios, ratios that --quick takes)."""
    rows = (
        ("2 jobs, own links", 2, 1, False, RATIOS, ("10:1", "2:1", "1:2")),
        ("2 jobs, own links, 4 buckets", 2, 4, False, ("10:1", "2:1", "1:1"), ()),
        ("2 jobs, one link", 2, 1, True, ("10:1", "2:1", "1:1", "1:2"), ()),
        ("2 jobs, one link, 4 buckets", 2, 4, True, ("2:1", "1:1"), ("2:1",)),
        ("3 jobs, own links", 3, 1, False, ("2:1", "1:2"), ("2:1",)),
        ("3 jobs, one link", 3, 1, True, ("2:1",), ()),
        ("4 jobs, own links", 4, 1, False, ("2:1", "1:2"), ()),
    )
    for title, count, buckets, shared, ratios, quick in rows:
        for ratio in ratios:
            link = "one" if shared else "own"
            name = f"{count}jobs-{ratio.replace(':', 'to')}-{link}" + (f"-{buckets}buckets" if buckets > 1 else "")
            yield Cell(name, title, (job_of_ratio(ratio, buckets=buckets),) * count, ratio, shared_link=shared,
                       timesliced=ratio == "2:1" and count == 2 and (buckets == 1) != shared, quick=ratio in quick)


def other_cells():
    short, long, talker = AskedJob(20, 10), AskedJob(60, 20), AskedJob(20, 40)
    yield Cell("exposed-half", "exposed part", (replace(CENTRE, buckets=2),) * 2)
    yield Cell("exposed-tenth", "exposed part", (replace(CENTRE, buckets=10),) * 2)
    yield Cell("unequal-length", "unequal jobs", (short, long))
    yield Cell("unequal-ratio", "unequal jobs", (CENTRE, talker), quick=True)
    yield Cell("unequal-ratio-one-link", "unequal jobs", (CENTRE, talker), shared_link=True)
    yield Cell("unequal-three", "unequal jobs", (CENTRE, AskedJob(20, 20), AskedJob(30, 30, 4)))
    yield Cell("unequal-buckets", "unequal jobs", (IN_FOUR, talker), shared_link=True)
    yield Cell("unequal-hidden", "unequal jobs", (IN_FOUR, AskedJob(10, 40)))
    yield Cell("device-1", "devices", (CENTRE,) * 2, devices=1)
    yield Cell("devices-4", "devices", (CENTRE,) * 2, devices=4, quick=True)
    yield Cell("devices-8", "devices", (CENTRE,) * 2, devices=8)
    yield Cell("devices-4-three", "devices", (CENTRE,) * 3, devices=4)
    yield Cell("nodes-2-of-1", "nodes", (CENTRE,) * 2, devices=1, nodes=2)
    yield Cell("nodes-2-of-2", "nodes", (IN_FOUR,) * 2, nodes=2, shared_link=True)
    for pattern in PATTERNS:
        yield Cell(f"pattern-{pattern}", "patterns", (replace(CENTRE, pattern=pattern),) * 2)
    mixed = replace(IN_FOUR, pattern="ddp_buckets"), replace(CENTRE, pattern="horovod_async")
    yield Cell("pattern-ddp-and-horovod", "patterns", mixed, quick=True)


def all_cells():
    return [*map_cells(), *other_cells()]
