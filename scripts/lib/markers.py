# SPDX-License-Identifier: Apache-2.0
"""Generated text in a document, between two markers that stay. Reads and writes that one file."""


def replace_between(path, begin, end, text):
    """Puts text (with its own line ends) between the markers; ValueError if they are not there."""
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path.name} lacks the markers around what is generated: {begin}")
    path.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")
