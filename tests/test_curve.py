from launcher.curve import MOST, Curve


def epoch(fit: int = 0, **logs: float) -> dict[str, object]:
    return {"fit": fit, "logs": logs}


def test_the_validation_loss_of_the_first_fit_is_kept() -> None:
    curve = Curve()
    curve.note(epoch(loss=0.5, val_loss=0.7), 10)
    curve.note(epoch(1, loss=0.4), 20)
    curve.note(epoch(accuracy=0.9), 30)
    assert [(p.steps, p.metric, p.loss) for p in curve.points] == [(10, "val_loss", 0.7)]


def test_of_many_epochs_points_remain_evenly_over_the_steps() -> None:
    curve = Curve()
    for n in range(1, 1001):
        curve.note(epoch(loss=1.0 / n), 10 * n)
    assert MOST / 2 <= len(curve.points) <= MOST
    gaps = {b.steps - a.steps for a, b in zip(curve.points, curve.points[1:], strict=False)}
    assert len(gaps) == 1
