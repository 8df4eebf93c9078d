# SPDX-License-Identifier: Apache-2.0
"""What a chaos run does: a sequence of short-lived jobs with what befalls each, and of attacks on the shared files. A
function of the seed alone; when things happen is up to the machine. Starts and kills nothing."""

import random
from dataclasses import dataclass

DEVICES = 2
ATTACKS = ("remove", "overwrite", "truncate")
SLOTS = 5  # short-lived jobs at a time


@dataclass(frozen=True)
class Act:
    """Something done to a job, `after_ms` after its start. `rank` None: to all its processes."""

    after_ms: int
    what: str  # kill, kill launcher, stop
    rank: int = None
    length_ms: int = 0  # of a stop


@dataclass(frozen=True)
class Episode:
    """One short-lived job, from its start to its end."""

    number: int
    pause_ms: int  # between its predecessor in the slot and it
    ranks: int
    device: int
    iterations: int
    compute_us: int
    bytes: int
    seed: int
    ending: str  # return, exec, orphan: what chaos_job is asked for
    orphan_ms: int
    namespace: bool  # in a PID namespace of its own
    acts: tuple
    linger_ms: int  # how long the rest of a job stays whose rank was killed

    @property
    def name(self):
        return f"s{self.number}"

    @property
    def killed(self):
        return any(act.what == "kill" for act in self.acts)


@dataclass(frozen=True)
class FileAttack:
    """The file of a device is removed, overwritten with random bytes, or cut off."""

    after: int  # number of the episode that it comes with
    delay_ms: int
    what: str  # remove, overwrite, truncate
    device: int
    at: float  # where in the file, part of its size
    bytes: int
    seed: int


def log_uniform(lots, low, high):
    return round(low * (high / low) ** lots.random())


def stop_of(lots, ranks):
    rank = lots.choice([None, *range(ranks)])
    return Act(lots.randrange(0, 900), "stop", rank, log_uniform(lots, 10, 3000))


def episode(number, seed):
    """The episode of that number; each has lots of its own, so one can be looked at alone."""
    lots = random.Random(f"{seed}/{number}")
    ranks = lots.choice([1, 2, 2])
    compute_us = log_uniform(lots, 300, 8000)
    ending = "return"
    acts = []
    fate = lots.random()
    if fate < 0.55:
        acts.append(Act(lots.randrange(0, 900), "kill", lots.choice([None, None, *range(ranks)])))
    elif fate < 0.65:
        acts.append(Act(lots.randrange(20, 400), "kill launcher"))
    elif fate < 0.72 and ranks == 1:
        ending = "exec"
    elif fate < 0.80:
        ending = "orphan"
    if lots.random() < 0.4:
        acts.append(stop_of(lots, ranks))
        if lots.random() < 0.25:
            acts.append(stop_of(lots, ranks))
    # Who is to be killed runs on until then.
    iterations = 100_000 if acts and acts[0].what == "kill" else lots.randrange(1, 25)
    return Episode(number, log_uniform(lots, 5, 300), ranks, lots.randrange(DEVICES), iterations, compute_us,
                   8 * log_uniform(lots, 1, 10_000), lots.getrandbits(32), ending, log_uniform(lots, 20, 2000),
                   lots.random() < 0.15, tuple(sorted(acts, key=lambda act: act.after_ms)),
                   log_uniform(lots, 20, 600))


def file_attack(number, seed):
    """What happens to a file beside the episode of that number; mostly nothing, and nothing to the first ones."""
    lots = random.Random(f"{seed}/{number}/file")
    if number < 4 or lots.random() >= 0.1:
        return None
    what = lots.choice(ATTACKS)
    return FileAttack(number, lots.randrange(0, 500), what, lots.randrange(DEVICES),
                      lots.choice([0.0, 0.0, lots.random()]), log_uniform(lots, 1, 400_000), lots.getrandbits(32))
