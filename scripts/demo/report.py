# SPDX-License-Identifier: Apache-2.0
"""The demo's figures as a table for a terminal, as Markdown and as JSON. Derives and prints; measures nothing."""

MODES = (
    ("timeslice", "together, time-sliced"),
    ("mps_worst", "together, MPS, worst of 5 offsets"),
    ("mps_mean", "together, MPS, mean of 5 offsets"),
    ("mps_in_phase", "together, MPS, in phase"),
    ("mps_best", "together, MPS, best of 5 offsets"),
    ("crossover", "together, Crossover"),
)
HEADER = ("mode", "period ms", "A it/s", "B it/s", "speed-up", "efficiency", "losses identical")


def speedup(outcome, period_ms):
    return outcome.serial_ms / period_ms


def efficiency(outcome, period_ms):
    return outcome.bound_ms / period_ms


def rows(outcome):
    """Text cells, HEADER's columns; the serial row first, the bound last."""

    def row(label, period, rates, losses):
        cells = [label, f"{period:.1f}", *(f"{rate:.2f}" for rate in rates)]
        return [*cells, f"{speedup(outcome, period):.2f}", f"{efficiency(outcome, period):.3f}", losses]

    serial = outcome.serial_ms
    table = [row("one after the other", serial, [1e3 / serial] * 2, "yes")]
    for mode, label in MODES:
        run = outcome.modes[mode]
        table.append(row(label, run.period_ms, run.rates, "yes" if run.losses_identical else "NO"))
    best = outcome.bound_ms
    table.append(row("bound T*", best, [1e3 / best] * 2, ""))
    return table


def heading(outcome):
    c, m, e = mean_phases(outcome)
    asked = outcome.setting.workload
    return (f"{outcome.setting.title}; measured alone: C = {c:.1f} ms (asked {asked.compute_ms:g}), M = {m:.1f} ms, "
            f"E = {e:.1f} ms, iteration {outcome.serial_ms / len(outcome.solo_ms):.1f} ms")


def terminal(outcome):
    table = [list(HEADER), *rows(outcome)]
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADER))]
    lines = [heading(outcome)]
    for line in table:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    lines.insert(2, "  " + "-" * (len(lines[1]) - 2))
    return "\n".join(lines)


def markdown(outcome):
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" + "---:|" * (len(HEADER) - 2) + "---|"]
    lines += ["| " + " | ".join(line) + " |" for line in rows(outcome)]
    return heading(outcome) + "\n\n" + "\n".join(lines)


def mean_phases(outcome):
    jobs = list(outcome.solo.values())
    return tuple(sum(getattr(job, name) for job in jobs) / len(jobs) for name in ("compute", "communicate", "exposed"))


def as_json(device, outcomes):
    settings = []
    for outcome in outcomes:
        c, m, e = mean_phases(outcome)
        modes = {}
        for mode, _ in MODES:
            run = outcome.modes[mode]
            modes[mode] = {"period_ms": run.period_ms, "speedup_vs_serial": speedup(outcome, run.period_ms),
                           "efficiency": efficiency(outcome, run.period_ms), "losses_identical": run.losses_identical,
                           "iterations_per_s": run.rates, "offset_ms": run.offset_ms}
        settings.append({"name": outcome.setting.name, "title": outcome.setting.title,
                         "asked": {"compute_ms": outcome.setting.workload.compute_ms,
                                   "comm_mb": outcome.setting.workload.comm_mb, "link_gbps": outcome.setting.link_gbps,
                                   "shared_link": outcome.setting.shared_link},
                         "c_ms": c, "m_ms": m, "e_ms": e, "bound_ms": outcome.bound_ms,
                         "serial_ms": outcome.serial_ms, "modes": modes})
    return {"device": device, "settings": settings}
