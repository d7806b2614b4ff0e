"""Every check in this package, on data that pass, fail and cannot tell: what holds of one is asked of all."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from reprokit import checks

ABOUT = checks.About(dataset="three clips, v2", seed=1234, version="abc123")


def rng(seed=0):
    return np.random.default_rng(seed)


def normal(shift=0.0, n=200, seed=1):
    return rng(seed).normal(shift, size=n)


def hits(rate, n=200):
    return rng(3).permutation(np.arange(n) < rate * n)


SURE = rng(4).random(400)
RIGHT = rng(5).random(400) < SURE
NAN = float("nan")

# name: (a pass, a failure, {what the data cannot tell: ...})
CHECKS = {
    "exact": (
        lambda: checks.exact("tokens", [1, 2, 3], [1, 2, 3]),
        lambda: checks.exact("tokens", torch.tensor([1, 2, 9]), torch.tensor([1, 2, 3])),
        {
            "nan": lambda: checks.exact("tokens", [1.0, NAN], [1.0, NAN]),
            "empty": lambda: checks.exact("tokens", torch.empty(0), torch.empty(0)),
        },
    ),
    "close": (
        lambda: checks.close("loss", torch.tensor([1.0]), torch.tensor([1.000001])),
        lambda: checks.close("loss", torch.tensor([1.0]), torch.tensor([1.1])),
        {
            "nan": lambda: checks.close("loss", torch.tensor([NAN]), torch.tensor([NAN])),
            "empty": lambda: checks.close("loss", [], []),
        },
    ),
    "at_least": (
        lambda: checks.at_least("accuracy", 0.89, 0.9, margin=0.02, n=200),
        lambda: checks.at_least("accuracy", 0.85, 0.9, margin=0.02, n=200),
        {
            "nan": lambda: checks.at_least("accuracy", NAN, 0.9, n=200),
            "infinite": lambda: checks.at_least("accuracy", float("inf"), 0.9, n=200),
            "empty": lambda: checks.at_least("accuracy", [], 0.9),
            "none": lambda: checks.at_least("accuracy", 0.95, 0.9, n=0),
            "a nan among samples": lambda: checks.at_least("accuracy", [1.0, NAN], 0.5),
        },
    ),
    "at_most": (
        lambda: checks.at_most("loss", torch.tensor(0.5), 0.6, n=200),
        lambda: checks.at_most("loss", 0.7, 0.6, margin=0.05, n=200),
        {
            "nan": lambda: checks.at_most("loss", NAN, 0.9, n=200),
            "infinite": lambda: checks.at_most("loss", float("-inf"), 0.9, n=200),
        },
    ),
    "history": (
        lambda: checks.at_least("accuracy", 0.9, margin=checks.History(values=[0.91, 0.9, 0.89, 0.9]), n=200),
        lambda: checks.at_least("accuracy", 0.7, margin=checks.History(values=[0.91, 0.9, 0.89, 0.9]), n=200),
        {
            "nan": lambda: checks.at_least("accuracy", 0.9, margin=checks.History(values=[0.9, NAN]), n=9),
            "constant": lambda: checks.at_least("accuracy", 0.9, margin=checks.History(values=[0.9, 0.9, 0.9]), n=9),
            "single": lambda: checks.at_least("accuracy", 0.9, margin=checks.History(values=[0.9]), n=9),
            "empty": lambda: checks.at_least("accuracy", 0.9, 0.8, margin=checks.History(values=[]), n=9),
            "value": lambda: checks.at_least("accuracy", NAN, 0.8, margin=checks.History(values=[0.8, 0.9]), n=9),
        },
    ),
    "bootstrap": (
        lambda: checks.at_least("accuracy", hits(0.88), 0.9, margin=checks.Bootstrap()),
        lambda: checks.at_least("accuracy", hits(0.6), 0.9, margin=checks.Bootstrap()),
        {
            "nan": lambda: checks.at_least("accuracy", [1.0, NAN] * 20, 0.9, margin=checks.Bootstrap()),
            "constant": lambda: checks.at_least("accuracy", [1.0] * 40, 0.9, margin=checks.Bootstrap()),
            "few": lambda: checks.at_least("accuracy", [1.0, 0.9], 0.9, margin=checks.Bootstrap()),
            "empty": lambda: checks.at_least("accuracy", [], 0.9, margin=checks.Bootstrap()),
            "median": lambda: checks.at_least(
                "accuracy", [0.0] + [1.0] * 59, 0.9, margin=checks.Bootstrap(statistic=np.median)
            ),
        },
    ),
    "strict bootstrap": (
        lambda: checks.at_least("accuracy", hits(0.98), 0.9, margin=checks.Bootstrap(strict=True)),
        lambda: checks.at_least("accuracy", hits(0.91), 0.9, margin=checks.Bootstrap(strict=True)),
        {},
    ),
    "Kolmogorov-Smirnov of two samples": (
        lambda: checks.kolmogorov_smirnov("latents", normal(), normal(seed=7)),
        lambda: checks.kolmogorov_smirnov("latents", normal(), normal(1.0, seed=7)),
        {
            "nan": lambda: checks.kolmogorov_smirnov("latents", [*normal(), NAN], normal()),
            "reference": lambda: checks.kolmogorov_smirnov("latents", normal(), [*normal(), NAN]),
            "empty": lambda: checks.kolmogorov_smirnov("latents", [], normal()),
            "constant": lambda: checks.kolmogorov_smirnov("latents", [0.0] * 50, normal()),
            "constant reference": lambda: checks.kolmogorov_smirnov("latents", normal(), [0.0] * 50),
            "both constant": lambda: checks.kolmogorov_smirnov("latents", [0.0] * 50, [0.0] * 50),
            "few": lambda: checks.kolmogorov_smirnov("latents", [0.0, 0.1, 0.2], [10.0, 11.0, 12.0]),
            "undetectable": lambda: checks.kolmogorov_smirnov("latents", normal(n=30), normal(n=30), detect=0.1),
        },
    ),
    "Kolmogorov-Smirnov of a distribution": (
        lambda: checks.kolmogorov_smirnov("latents", normal(), norm.cdf),
        lambda: checks.kolmogorov_smirnov("latents", normal(0.5), norm.cdf),
        {
            "nan": lambda: checks.kolmogorov_smirnov("latents", [*normal(), NAN], norm.cdf),
            "empty": lambda: checks.kolmogorov_smirnov("latents", [], norm.cdf),
            "constant": lambda: checks.kolmogorov_smirnov("latents", [0.0] * 50, norm.cdf),
        },
    ),
    "chi-square of shares": (
        lambda: checks.chi_square("labels", [48, 52, 100], expected=[1, 1, 2]),
        lambda: checks.chi_square("labels", [90, 10, 100], expected=[1, 1, 2]),
        {
            "nan": lambda: checks.chi_square("labels", [48, NAN, 100], expected=[1, 1, 2]),
            "infinite": lambda: checks.chi_square("labels", [48, float("inf")], expected=[1, 1]),
            "empty": lambda: checks.chi_square("labels", [0, 0], expected=[1, 1]),
            "few": lambda: checks.chi_square("labels", [2, 3], expected=[1, 1]),
            "one category": lambda: checks.chi_square("labels", [200], expected=[1]),
            "all in one": lambda: checks.chi_square("labels", [200, 0], expected=[1, 0]),
            "undetectable": lambda: checks.chi_square("labels", [48, 52], expected=[1, 1], detect=0.01),
        },
    ),
    "chi-square of two samples": (
        lambda: checks.chi_square("labels", [48, 52, 100], reference=[50, 50, 100]),
        lambda: checks.chi_square("labels", [90, 10, 100], reference=[10, 90, 100]),
        {
            "nan": lambda: checks.chi_square("labels", [48, 52], reference=[NAN, 3]),
            "empty": lambda: checks.chi_square("labels", [48, 52], reference=[0, 0]),
        },
    ),
    "Kullback-Leibler": (
        lambda: checks.kl_divergence("labels", [48, 52, 100], [1, 1, 2], at_most=0.05),
        lambda: checks.kl_divergence("labels", [90, 10, 100], [1, 1, 2], at_most=0.05),
        {
            "nan": lambda: checks.kl_divergence("labels", [90, NAN], [1, 1], at_most=0.05),
            "empty": lambda: checks.kl_divergence("labels", [], [], at_most=0.05),
            "one category": lambda: checks.kl_divergence("labels", [10], [1], at_most=0.05),
            "few": lambda: checks.kl_divergence("labels", [5, 5, 10], [1, 1, 2], at_most=0.01),
        },
    ),
    "calibration": (
        lambda: checks.calibration("classifier", SURE, RIGHT),
        lambda: checks.calibration("classifier", SURE, ~RIGHT),
        {
            "nan": lambda: checks.calibration("classifier", [*SURE, NAN], [*RIGHT, True]),
            "empty": lambda: checks.calibration("classifier", [], []),
            "constant": lambda: checks.calibration("classifier", [0.9] * 50, [True] * 45 + [False] * 5),
            "few": lambda: checks.calibration("classifier", [0.5, 0.6], [True, False]),
        },
    ),
    "calibration error": (
        lambda: checks.calibration("classifier", SURE, RIGHT, at_most=0.1),
        lambda: checks.calibration("classifier", SURE, ~RIGHT, at_most=0.1),
        {"few": lambda: checks.calibration("classifier", SURE[:40], RIGHT[:40], at_most=0.02)},
    ),
}
BLAMELESS = lambda: checks.exact("shape", (1, 2), (1, 2))
BLAMED = lambda: checks.exact("shape", (1, 2), (1, 3))
UNASKED = lambda: checks.exact("noise", NAN, NAN)
CHECKS |= {
    "all of": (
        lambda: checks.all_of(BLAMELESS(), checks.kolmogorov_smirnov("latents", normal(), norm.cdf)),
        lambda: checks.all_of(BLAMED(), checks.kolmogorov_smirnov("latents", normal(), norm.cdf)),
        {"a part": lambda: checks.all_of(BLAMELESS(), UNASKED())},
    ),
    "any of": (
        lambda: checks.any_of(BLAMELESS(), BLAMED()),
        lambda: checks.any_of(BLAMED(), BLAMED()),
        {"a part": lambda: checks.any_of(BLAMELESS(), UNASKED())},
    ),
    "not": (
        lambda: checks.not_(BLAMED()),
        lambda: checks.not_(BLAMELESS()),
        {"nan": lambda: checks.not_(UNASKED())},
    ),
}
UNANSWERED = {(name, why): make for name, (_, _, unanswered) in CHECKS.items() for why, make in unanswered.items()}


def pytest_generate_tests(metafunc):
    """every_pass, every_failure and every_unanswered: a function that makes the result, for each there is."""
    for fixture, makes in {
        "every_pass": {name: makes[0] for name, makes in CHECKS.items()},
        "every_failure": {name: makes[1] for name, makes in CHECKS.items()},
        "every_unanswered": {f"{name}: {why}": make for (name, why), make in UNANSWERED.items()},
    }.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(makes.values()), ids=list(makes))


@pytest.fixture
def about():
    return ABOUT
