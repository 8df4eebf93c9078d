# SPDX-License-Identifier: Apache-2.0
"""What a chaos run has shown, as text, as a table and as figures; and the longest time a job stood still, with what
explains it. Pure but for what it is given."""

from collections import defaultdict
from dataclasses import dataclass

from chaos_jobs import went_ungated
from chaos_judge import BROKEN, EXCUSES, MS, NEVER


@dataclass
class Stall:
    job: str
    device: int
    gap_ms: float  # without compute of the job on the device
    waited_ms: float  # of that, waiting for the turn there
    why: str


def turns_between(history, name, start, end):
    """[(ns within, job, ns of the whole turn, how it ended)] of others, longest first."""
    rows = []
    for other, turns in history.turns.items():
        for begin, until, how in turns:
            within = min(until, end) - max(begin, start)
            if other != name and within > 0:
                rows.append((within, other, min(until, end) - begin, how))
    return sorted(rows, reverse=True)


def explain(history, subjects, name, start, end):
    rows = turns_between(history, name, start, end)
    if not rows:
        return "nobody else had the turn"
    within, other, whole, how = rows[0]
    text = f"{other} had the turn for {whole / MS:.0f} ms, ended by {'its lease' if how == 'expire' else how}"
    stopped = sum(max(0, min(e, end) - max(s, start)) for _, s, e in subjects[other].stops)
    if stopped:
        text += f", while it was stopped for {stopped / MS:.0f} ms"
    return text + (f"; all {len(rows)} turns of others: {sum(row[0] for row in rows) / MS:.0f} ms" if len(rows) > 1
                   else "")


def stalls(subjects, owners, histories, compute):
    """(the longest gap in a long-lived job's compute, the longest wait of one for a turn), each a Stall or None."""
    by_name = {subject.name: subject for subject in subjects}
    ends = defaultdict(list)
    for device, pid, _, start, end in compute:
        subject = owners.of_pid(pid, start)
        if subject and subject.long_lived:
            ends[subject.name, pid, device].append((start, end))
    gap = wait = None
    for (name, _, device), rows in ends.items():
        rows.sort()
        if device not in histories:
            continue
        until = rows[0][1]
        for start, end in rows[1:]:
            if start - until > (gap[0] if gap else 0):
                gap = (start - until, name, device, until, start)
            until = max(until, end)
    for device, history in histories.items():
        for segment in history.segments:
            for key, start, end in segment.waits:
                owner = owners.of_key(key, start)
                if owner and owner.long_lived and end != NEVER and end - start > (wait[0] if wait else 0):
                    wait = (end - start, owner.name, device, start, end)
    return tuple(found and describe(histories, owners, by_name, *found) for found in (gap, wait))


def describe(histories, owners, by_name, length, name, device, start, end):
    waits = {number: sum(max(0, min(until, end) - max(since, start)) for segment in history.segments
                         for key, since, until in segment.waits
                         if (owner := owners.of_key(key, since)) and owner.name == name)
             for number, history in histories.items()}
    # A rank may stand still because its peer on another device waits.
    where = device if waits[device] * 2 >= length else max(waits, key=waits.get)
    why = explain(histories[where], by_name, name, start, end)
    if where != device:
        why = f"its peer on device {where} waited {waits[where] / MS:.0f} ms for the turn: {why}"
    return Stall(name, device, length / MS, waits[device] / MS, why)


class Report:
    def __init__(self, options, run, verdict, longest):
        self.options, self.run, self.verdict = options, run, verdict
        self.gap, self.wait = longest
        self.said = [(job.name, line) for job in (*run.long_jobs, *run.short_jobs) for line in job.said]

    @property
    def long_right(self):
        return sum(job.right for job in self.run.long_jobs)

    @property
    def long_wrong(self):
        return sum(job.wrong for job in self.run.long_jobs)

    def broken_ns(self):
        return sum(self.verdict.excused[why][1] for why in BROKEN if why in self.verdict.excused)

    def double_holders(self):
        return self.verdict.double_grants + len(self.verdict.broken)

    def problems(self):
        found = list(self.run.problems) + self.verdict.broken
        if self.verdict.double_grants:
            found.append(f"{self.verdict.double_grants} turns were granted while another job had the turn")
        if self.long_wrong:
            found.append(f"{self.long_wrong} runs of long-lived jobs came to other losses than alone")
        if self.run.left_behind:
            found.append(f"files left behind: {', '.join(self.run.left_behind)}")
        if self.verdict.unknown:
            found.append(f"{self.verdict.unknown} kernels in the truth log belong to no job")
        if self.options.files is False and self.said:
            found += [f"job {name} said: {line}" for name, line in self.said]
        return found

    def rows(self):
        """(label, value) in the order of the table."""
        count, verdict = self.run.counts, self.verdict
        seconds = self.run.chaos_ns / 1e9
        actions = sum(count[word] for word in ("joins", "left", "kill", "kill launcher", "stop", "restarts"))
        actions += sum(count[word] for word in count if word.startswith("file: "))
        rows = [("chaos for", f"{seconds:.0f} s, seed {self.options.seed}, files "
                              f"{'attacked' if self.options.files else 'left alone'}"),
                ("things done", f"{actions} ({actions / seconds:.1f} a second)"),
                ("kills survived", f"{count['kill'] + count['kill launcher']} "
                                   f"({count['processes killed']} processes at once, then the rest of their jobs; "
                                   f"{count['kill launcher']} launchers)"),
                ("stops survived", f"{count['stop']} ({count['processes stopped']} processes)"),
                ("joins", f"{count['joins']} ({count['namespaces']} in a PID namespace of their own)"),
                ("leaves", f"{count['left']} ({count['left: exec']} after an exec, {count['left: orphan']} leaving a "
                           "child)"),
                ("restarts of whole jobs", f"{count['restarts']}")]
        if self.options.files:
            rows.append(("attacks on files", ", ".join(f"{count['file: ' + what]} {text}" for what, text in (
                ("remove", "removed"), ("overwrite", "overwritten"), ("truncate", "cut off")))))
        for label, stall in (("longest stall", self.gap), ("longest wait for a turn", self.wait)):
            if stall:
                rows.append((label, f"{stall.gap_ms:.0f} ms, job {stall.job} on device {stall.device}: {stall.why}"))
        rows += [("turns cut by their lease; dead clients reaped", f"{verdict.expired}; {verdict.reaped}"),
                 ("double holders", f"{self.double_holders()}" + (
                     f" ({self.broken_ns() / MS:.1f} ms)" if self.double_holders() else "")),
                 ("lost jobs", f"{count['lost'] + count['hung'] + count['wrong']}"),
                 ("losses right", f"{self.long_right} of {self.long_right + self.long_wrong} runs of long-lived jobs, "
                                  f"{count['left']} of {count['left'] + count['wrong'] + count['lost']} short-lived "
                                  "ones"),
                 ("files left behind", f"{len(self.run.left_behind)}"),
                 ("jobs that went on without turns",
                  f"{len({name for name, line in self.said if went_ungated([line])})}")]
        return rows

    def excuses(self):
        """[(reason, times, ms, longest ms)] of compute of two jobs at once."""
        return [(EXCUSES[why], times, ns / MS, longest / MS) for why in EXCUSES
                if (entry := self.verdict.excused.get(why)) for times, ns, longest in (entry,)]

    def summary(self):
        return (f"{self.verdict.kernels} kernels judged; two jobs computed at once for "
                f"{self.verdict.together_ns / MS:.1f} ms of {self.verdict.computed_ns / MS:.0f} ms of compute:")

    def text(self):
        width = max(len(label) for label, _ in self.rows())
        lines = [f"{label:{width}}  {value}" for label, value in self.rows()]
        lines += ["", self.summary()]
        lines += [f"  {times:6} times, {ms:10.2f} ms, longest {longest:8.2f} ms: {why}"
                  for why, times, ms, longest in self.excuses()]
        lines += [f"said by {name}: {line}" for name, line in self.said[:20]]
        if len(self.said) > 20:
            lines.append(f"and {len(self.said) - 20} lines more")
        return "\n".join(lines)

    def markdown(self):
        lines = ["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in self.rows()), "",
                 self.summary(), "", "| excused because | times | ms | longest ms |", "|---|---:|---:|---:|",
                 *(f"| {why} | {times} | {ms:.1f} | {longest:.1f} |" for why, times, ms, longest in self.excuses())]
        return "\n".join(lines)

    def figures(self):
        return {"seed": self.options.seed, "seconds": self.run.chaos_ns / 1e9, "files": self.options.files,
                "counts": dict(self.run.counts), "double_holders": self.double_holders(),
                "losses_right": self.long_right, "losses_wrong": self.long_wrong,
                "files_left_behind": self.run.left_behind,
                "longest_stall": vars(self.gap) if self.gap else None,
                "longest_wait": vars(self.wait) if self.wait else None,
                "together_ms": self.verdict.together_ns / MS, "compute_ms": self.verdict.computed_ns / MS,
                "excused": {why: {"times": entry[0], "ms": entry[1] / MS, "longest_ms": entry[2] / MS}
                            for why, entry in self.verdict.excused.items()},
                "said": [f"{name}: {line}" for name, line in self.said], "problems": self.problems()}
