"""Tests that may be skipped, and why. Every other skip counts as a failure (conftest.py): a check that vanishes in a
fresh clone checks nothing.
"""

REAL_DATA = "price series and animal tracks of others are not ours to distribute"
ALLOWED = {
    "tests/training/test_dimensions.py::test_buffalo_tracks": REAL_DATA,
    "tests/policy/test_empirical.py::test_prices_hardly_move_within_the_discount_time": REAL_DATA,
    "tests/paper/test_prices.py::test_a_real_file_of_another_resolution_is_refused": REAL_DATA,
    "tests/paper/test_prices.py::test_better_than_the_paper": REAL_DATA,
    "tests/data/test_files.py::test_btc": REAL_DATA,
    "tests/data/test_files.py::test_eurusd": REAL_DATA,
    "tests/data/test_files.py::test_buffalo": REAL_DATA,
    "tests/runs/test_page.py::test_a_browser_shows_it": "needs Chromium, which most machines for tests do not have",
    "tests/runs/test_page.py::test_a_wide_table_does_not_widen_the_page_of_a_phone": "needs Chromium",
    "tests/runs/test_page.py::test_the_engine_of_chromium_shows_it": "needs PyQt6-WebEngine, which is large",
    "tests/faults/test_places.py::": "mounting a small file system takes rights that containers rarely give",
    "tests/data/test_transition_blocks.py::": "reads its memory from /proc, which only Linux has",
    "tests/data/test_on_disk.py::": "limits its memory as only Linux can",
}


def may_skip(nodeid: str) -> bool:
    """Whether a test is on the list."""
    return any(nodeid.startswith(start) for start in ALLOWED)
