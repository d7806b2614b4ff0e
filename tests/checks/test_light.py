"""Importing the checks brings no library; where scipy is missing, the one line says what to install."""

import subprocess
import sys

import pytest

from reprokit.checks import at_least, exact, kolmogorov_smirnov
from reprokit.errors import BadInput

HEAVY = ["torch", "numpy", "scipy", "pytest"]


def test_importing_the_checks_imports_no_library():
    code = f"import sys, reprokit.checks; sys.exit(' '.join(set({HEAVY}) & set(sys.modules)) or None)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_name_is_found_where_it_is_said_to_be():
    import reprokit.checks

    assert sorted(reprokit.checks.__all__) == sorted(reprokit.checks._HOMES)
    assert all(getattr(reprokit.checks, name).__name__ == name for name in reprokit.checks.__all__)


def test_data_without_arrays_are_compared_without_numpy():
    code = (
        "import sys; from reprokit.checks import About, at_least, check, exact\n"
        "about = About(dataset='d', seed=0, version='v')\n"
        "check(exact('x', {'a': [1, 'b']}, {'a': [1, 'b']}), about); check(at_least('x', 1.0, 0.5, n=1), about)\n"
        f"sys.exit(' '.join(set({HEAVY}) & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_scipy_statistics_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "scipy.stats", raising=False)
    with pytest.raises(BadInput, match=r"latents: this statistic needs scipy; pip install 'reprokit\[checks\]'"):
        kolmogorov_smirnov("latents", [1.0, 2.0], [1.0, 2.0])
    exact("x", [1.0], [1.0]), at_least("x", [1.0, 2.0], 1.0)
