#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Runs Spin on one setting of the model and judges what it says; and shows for each of a list of small changes to the
# model that Spin finds them. The settings and the changes are the two tables below; what they mean is in README.md.
# Nothing of the protocol is in here.
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FILES = ("turns.pml", "settings.pml", "processes.pml")

# Liveness, by name: what Spin's option -N takes. A safety run (no name) looks at assertions and at ends that are none:
# a client that sleeps for ever is one.
SERVED = "served"  # who waits is served
ENDS = "ends"      # everybody ends

# setting: (defines, properties)
SETTINGS = {
    "turns": (["TURNS"], [None, SERVED]),
    "shared": (["SHARED"], [None, SERVED]),
    "deadlines": (["SHARED", "DEADLINES"], [None, SERVED]),
    "leases": (["LEASES"], [None, SERVED]),
    "deaths": (["DEATHS"], [None]),
    "coming": (["COMING"], [None, ENDS]),
    "freezes": (["FREEZES"], [None]),
    "tears": (["TEARS"], [None]),
    "giving_up": (["GIVING_UP"], [None]),
    "gang": (["GANG"], [None, ENDS]),
}
# The same with more in it, for a night: up to ten minutes each.
LONG = {
    "long_coming": (["COMING", "KILLS=2"], [None, ENDS]),
    "long_deaths": (["DEATHS", "KILLS=2"], [None]),
    "long_gang": (["GANG", "ROUNDS=2"], [None]),
}

# Changes that Spin must find: (name, setting, property, expected complaint, [(file, old text, new text), ...]).
ASSERTION, SLEEP, CYCLE = "assertion violated", "invalid end state", "acceptance cycle"
MUTATIONS = [
    ("no_wake", "turns", None, SLEEP, [("turns.pml", "wakes = wakes | (1 << i);\n                   POINT", "POINT")]),
    ("no_look_at_the_word", "turns", None, SLEEP, [
        ("processes.pml", "atomic { mine.asleep = !mine.changed };",
         "if :: mine.changed -> op = REQUEST :: else fi;\n"
         "               if :: op == DONE -> mine.asleep = 1 :: else -> op = DONE fi;")]),
    ("word_read_after_the_lock", "turns", None, SLEEP, [
        ("turns.pml", ":: !faulted && what == EXPIRE && !mine.claims -> mine.changed = 0 /*",
         ":: !faulted && what == EXPIRE && !mine.claims /*"),
        ("processes.pml", "atomic { mine.asleep = !mine.changed };",
         "mine.changed = 0;\n               atomic { mine.asleep = !mine.changed };")]),
    ("no_word_but_a_wake", "turns", None, SLEEP, [("turns.pml", "s[g].slot[i].changed = 1;\n                   wakes",
                                                   "wakes")]),
    ("every_request_granted", "shared", None, ASSERTION, [
        ("turns.pml", "!faulted && what == EXPIRE && mine.claims -> mine.held = 1; POINT; TAKE",
         "!faulted && what == EXPIRE -> granted = 1")]),
    ("no_lock", "tears", None, ASSERTION, [
        ("settings.pml", "inline take_lock() { atomic { s[g].owner == 0 ->", "inline take_lock() { atomic { true ->")]),
    ("grant_beside_holder", "turns", None, ASSERTION, [
        ("turns.pml", "ending == NONE && h == 0 -> /* grant_next() */",
         "ending == NONE && (h == 0 || s[g].waiting_jobs == 2) -> /* grant_next() */"),
        ("turns.pml", "ending == NONE && h != 0 && s[g].waiting_jobs != 0 -> /* lease() */",
         "ending == NONE && h != 0 && s[g].waiting_jobs == 1 -> /* lease() */")]),
    ("no_rounds", "turns", None, ASSERTION, [("turns.pml", "s[g].had[next] = 1;", "skip;")]),
    ("no_place_in_the_round", "turns", None, ASSERTION, [("turns.pml", "j >= reached && !s[g].had[j]",
                                                          "!s[g].had[j]")]),
    ("no_end_of_an_unused_turn", "turns", None, ASSERTION, [
        ("turns.pml", ":: clients != 0 && s[g].holder == j + 1 && claims == 0 -> ending = j",
         ":: clients != 0 && s[g].holder == j + 1 && claims == 0 -> skip")]),
    ("joins_for_ever", "shared", SERVED, CYCLE, [
        ("turns.pml", "!mine.claims && !(s[g].waiting_jobs != 0 && mine.gave) ->", "!mine.claims ->")]),
    ("no_look_at_the_mark", "giving_up", None, ASSERTION, [
        ("settings.pml", ":: !s[g].given_up -> granted = 1", ":: true -> granted = 1"),
        ("turns.pml", "faulted = faulted || s[g].given_up", "skip")]),
    ("the_stopped_one_holds_for_ever", "giving_up", None, SLEEP, [
        ("settings.pml", ":: s[g].owner != 0 && frozen[s[g].owner - 1] -> faulted = 1; give_up()", "")]),
    ("nobody_told_of_the_end", "giving_up", None, SLEEP, [
        ("settings.pml", "s[g].slot[k].changed = 1; s[g].slot[k].asleep = 0", "skip"),
        ("settings.pml", "#define TIME_OUT(g) (s[g].owner != 0 && frozen[s[g].owner - 1])",
         "#define TIME_OUT(g) (me == 0 && s[g].owner != 0 && frozen[s[g].owner - 1])")]),
    ("late_comers_forgotten", "deadlines", None, ASSERTION, [
        ("turns.pml", ":: waiters > 0 -> admit = h - 1", ":: waiters > SLOTS -> admit = h - 1")]),
    ("no_lease", "gang", None, SLEEP, [("turns.pml", ":: lease_is_over(g) -> ending", ":: false -> ending"),
                                       ("settings.pml", "#define TIME_OUT(g) lease_is_over(g)",
                                        "#define TIME_OUT(g) false")]),
    ("lease_does_not_begin", "freezes", None, SLEEP, [
        ("turns.pml", ":: !s[g].leased[h - 1] -> s[g].leased[h - 1] = 1",
         ":: !s[g].leased[h - 1] -> skip")]),
    ("no_repair", "coming", None, ASSERTION, [
        ("turns.pml", "(s[g].owner_died -> REPAIR : what));", "what);")]),
    ("no_reaping", "coming", ENDS, CYCLE, [
        ("turns.pml", "leaver == NONE && k != SLOT(me) && s[g]", "k > SLOTS && k != SLOT(me) && s[g]")]),
    ("no_looks", "deaths", None, SLEEP, [
        ("settings.pml", "#define TIME_OUT(g) (somebody_died(g) || mine.changed || lease_is_over(g))",
         "#define TIME_OUT(g) lease_is_over(g)")]),
]


class Failure(Exception):
    pass


def run(command, folder, what):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{what} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def read_model():
    return {file: (HERE / file).read_text() for file in FILES}


def in_one(texts):
    """The model as one file: Spin's reports give lines of included files as the including one's."""
    whole = texts["turns.pml"]
    for file in FILES[1:]:
        whole = whole.replace(f'#include "{file}"\n', texts[file])
    return whole


def verify(texts, setting, wanted, megabytes, optimise="-O1"):
    """Spin's verdict on one property of a setting, as text."""
    defines = ["-D" + define for define in {**SETTINGS, **LONG}[setting][0]]
    with tempfile.TemporaryDirectory(prefix="crossover-model-") as folder:
        (pathlib.Path(folder) / "model.pml").write_text(in_one(texts))
        generated = run(["spin", *defines, "-a", "model.pml"], folder, "spin -a")
        if "rror" in generated:
            raise Failure("spin -a says:\n" + generated)
        # Plain safety runs need no room for cycles, liveness runs take weak fairness.
        kind = ["-DSAFETY", "-DNOCLAIM"] if wanted is None else ["-DNFAIR=3"]
        run(["cc", optimise, "-w", "-DCOLLAPSE", f"-DMEMLIM={megabytes}", *kind, "-o", "pan", "pan.c"], folder, "cc")
        options = [] if wanted is None else ["-a", "-f", "-N", wanted]
        done = subprocess.run(["./pan", "-m3000000", "-w22", *options], cwd=folder, capture_output=True, text=True,
                              check=False)
        verdict = done.stdout + done.stderr
    counted = re.search(r"errors: (\d+)", verdict)
    if counted is None or re.search(r"max search depth|out of memory|-DMEMLIM|hit the limit", verdict):
        raise Failure("the search came to no end:\n" + verdict[-3000:])
    return int(counted.group(1)), verdict


def states(verdict):
    return int(re.search(r"(\d+) states, stored", verdict).group(1))


def unreached(texts, setting, verdict):
    """Lines of the model that this setting must reach, by their mark `/* must: SETTING ... */`, and does not."""
    lines = in_one(texts).splitlines()
    missed = set()
    for number in re.findall(r"model\.pml:(\d+), state", verdict):
        line = lines[int(number) - 1].strip()
        mark = re.search(r"/\* must: ([\w ]+) \*/", line)
        if mark and setting in mark.group(1).split():
            missed.add(line)
    return sorted(missed)


def check_setting(setting, megabytes):
    texts = read_model()
    for wanted in {**SETTINGS, **LONG}[setting][1]:
        errors, verdict = verify(texts, setting, wanted, megabytes)
        if errors != 0:
            raise Failure(f"{setting}: {errors} errors\n{verdict}")
        missed = unreached(texts, setting, verdict) if wanted is None else []
        if missed:
            raise Failure(f"{setting}: never reached:\n" + "\n".join(missed))
        print(f"{setting}, {wanted or 'safety'}: errors: 0, {states(verdict)} states")


def check_mutation(name, megabytes):
    _, setting, wanted, complaint, changes = next(row for row in MUTATIONS if row[0] == name)
    texts = read_model()
    for file, old, new in changes:
        if texts[file].count(old) != 1:
            raise Failure(f"{name}: '{old}' is {texts[file].count(old)} times in {file}, not once")
        texts[file] = texts[file].replace(old, new)
    # Errors are found soon: compiling would take longer than searching.
    errors, verdict = verify(texts, setting, wanted, megabytes, "-O0")
    if errors == 0:
        raise Failure(f"{name}: not found in {setting}: {states(verdict)} states, no error")
    said = re.search(r"pan:\d+: (.*)", verdict).group(1)
    if not re.search(complaint, said):
        raise Failure(f"{name}: Spin says '{said}', expected {complaint}")
    print(f"{name}, in {setting}: {said}")


def main():
    parser = argparse.ArgumentParser(description="Checks the model of the turn protocol with Spin.")
    parser.add_argument("--setting", action="append", choices=[*SETTINGS, *LONG], default=[],
                        help="check this setting")
    parser.add_argument("--mutation", action="append", choices=[row[0] for row in MUTATIONS], default=[],
                        help="show that Spin finds this change")
    parser.add_argument("--long", action="store_true", help="check the long settings")
    parser.add_argument("--list", choices=["settings", "mutations"], help="list the names and do nothing")
    parser.add_argument("--megabytes", type=int, default=2000, help="most memory for a search (default 2000)")
    arguments = parser.parse_args()
    if arguments.list == "settings":
        print(*SETTINGS, sep="\n")
    elif arguments.list == "mutations":
        print(*[row[0] for row in MUTATIONS], sep="\n")
    else:
        arguments.setting += LONG if arguments.long else []
        everything = not arguments.setting and not arguments.mutation
        for setting in SETTINGS if everything else arguments.setting:
            check_setting(setting, arguments.megabytes)
        for name in [row[0] for row in MUTATIONS] if everything else arguments.mutation:
            check_mutation(name, arguments.megabytes)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"check.py: {failure}")
