# SPDX-License-Identifier: Apache-2.0
"""For gdb (-x): runs its program with $CALLED_PRELOAD and prints "called NAME" at the first call of each function
named in $CALLED_NAMES, all of $CALLED_LIBRARY, which is among what is preloaded. The program runs on as without it. It
is stopped once to place the breakpoints: when a library whose name matches $CALLED_AFTER is loaded."""

import os

import gdb


class Once(gdb.Breakpoint):
    def __init__(self, name):
        super().__init__(f"*{name}", internal=True)
        self.function = name

    def stop(self):
        print(f"called {self.function}", flush=True)
        self.enabled = False
        return False


for setting in ("pagination off", "confirm off", "auto-solib-add off", "print thread-events off",
                "print inferior-events off", "startup-with-shell off"):
    gdb.execute(f"set {setting}")
gdb.execute(f"set environment LD_PRELOAD {os.environ['CALLED_PRELOAD']}")
gdb.execute(f"catch load {os.environ['CALLED_AFTER']}")
gdb.execute("run")
gdb.execute(f"sharedlibrary {os.environ['CALLED_LIBRARY']}")
for function in os.environ["CALLED_NAMES"].split():
    Once(function)
gdb.execute("delete 1")
gdb.execute("continue")
