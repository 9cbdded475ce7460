"""Slices follow the speeds of workers that exchange directly, on the same curve."""

import numpy as np
import pytest

from tests.worker.groups import difference, group

pytestmark = [pytest.mark.tensorflow, pytest.mark.alone, pytest.mark.timeout(300)]

TOLERANCE = 1e-5
CASE = "slices_follow_speed"


@pytest.mark.parametrize(
    ("framework", "n", "algorithm", "shares"),
    [("keras", 3, "two_shot+overlap", "1,2,1.5"), ("tf_keras", 2, "ring+overlap", "1,2")],
)
def test_slices_follow_speed_on_the_same_curve(framework, n, algorithm, shares):
    found = [rank[CASE] for rank in group(framework, n, CASE, algorithm, shares)]
    assert "error" not in found[0], found[0]["error"]
    curves = found[0]["curves"]
    assert difference(curves["equal"], curves["following"]) < TOLERANCE
    assert all(difference(curves, other["curves"]) == 0 for other in found)
    parts = found[0]["parts"]
    slow, slower = 1 / 2, 1 / 4
    # A few steps may have been held up by whatever else the machine did.
    assert np.median(parts[15:30]) == pytest.approx(slow / (slow + n - 1), abs=0.06)
    assert np.median(parts[40:60]) == pytest.approx(slower / (slower + n - 1), abs=0.06)
