# SPDX-License-Identifier: Apache-2.0
"""What the project's pictures share: colours, text, the page around them. No picture here."""

import html

INK, MUTED, OTHER, OURS, LIMIT = "#1f2933", "#616e7c", "#9fb3c8", "#d9480f", "#2b8a3e"


def text(x, y, words, size=13, fill=INK, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def page(width, height, parts):
    """A whole SVG file on white ground."""
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif">')
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"
