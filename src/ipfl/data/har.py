"""Smartphone activity by person: windows of six inertial signals, and features for small models.

Windows are 128 readings (2.56 s) of three accelerations and three angular speeds and overlap by half, so
training and test are split by recording: no recording is in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset
from ipfl.errors import InputError

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
WINDOW = 128
STEP = 64
_FREQUENCIES = 16
"""Lowest frequencies kept, 0.4 to 6.25 Hz: human movement is slower than that."""


def window_features(windows: NDArray[Any]) -> NDArray[np.float32]:
    """168 features per window: mean, spread, extremes, roughness and low spectrum of eight signals.

    The eight are the six signals and the two magnitudes, which do not depend on how the phone is turned.
    """
    x = windows.astype(np.float32)
    magnitudes = [np.linalg.norm(x[..., axes], axis=-1, keepdims=True) for axes in ([0, 1, 2], [3, 4, 5])]
    signals = np.concatenate([x, *magnitudes], axis=-1)
    mean = signals.mean(axis=1)
    spectrum = np.abs(np.fft.rfft(signals - mean[:, None], axis=1))[:, 1 : _FREQUENCIES + 1]
    parts = [
        mean,
        signals.std(axis=1),
        signals.min(axis=1),
        signals.max(axis=1),
        np.abs(np.diff(signals, axis=1)).mean(axis=1),
        np.log1p(spectrum).reshape(len(x), -1),
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def har(windows: NDArray[Any], y: NDArray[Any], person: NDArray[Any], recording: NDArray[Any]) -> Dataset:
    """The data set from its windows; features are standardised with the training pool's mean and spread.

    Args:
        windows: (n, 128, 6).
        y: Activity 0–5.
        person: Who was recorded.
        recording: 0, 1, … within a person; the second one (1) is its test data.
    """
    if windows.ndim != 3 or windows.shape[1:] != (WINDOW, 6):
        raise InputError(f"har: windows have shape {windows.shape}, expected (n, {WINDOW}, 6)")
    if any(array.shape != (len(windows),) for array in (y, person, recording)):
        raise InputError("har: x, y, subject and recording differ in length")
    if windows.dtype.kind not in "buif":
        raise InputError(f"har: x holds {windows.dtype}, expected numbers")
    if not np.isfinite(windows).all():
        raise InputError("har: x holds values that are not finite (NaN or infinity)")
    test = recording == 1
    if test.all() or not test.any():
        raise InputError("har: needs at least two recordings, one to train on and one to test on")
    with np.errstate(all="ignore"):  # what is too large for float32 is refused below, as not finite
        x = window_features(windows)
        mean, spread = x[~test].mean(axis=0), x[~test].std(axis=0)
        x = (x - mean) / np.maximum(spread, 1e-6)
    return Dataset(
        name="har",
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
        classes=len(ACTIVITIES),
        group_train=person[~test],
        group_test=person[test],
    )
