# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-qualify: one module a family of checks, a runner, a report. Needs Python's standard library alone."""
