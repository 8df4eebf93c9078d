# SPDX-License-Identifier: Apache-2.0
"""Looks at something again and again, from a thread, while a block runs."""

import threading


class Sampler:
    """A context manager: sample(), which a subclass has, is called every period_s within it. What it keeps is to be
    read afterwards."""

    period_s = 0.1

    def __init__(self):
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _run(self):
        while not self._done.wait(self.period_s):
            self.sample()
