"""The benchmark measures by what Linux alone tells, and so do its tests."""

from __future__ import annotations

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]
