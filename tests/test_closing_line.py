from scripts.closing_line import closing_line

ALONE = "x\n= 12 passed, 3,000 deselected in 60.10s (0:01:00) =\n".replace(",000", "000")
REST = "====== 1 failed, 3000 passed, 2 skipped, 112 deselected in 1500.00s (0:25:00) ======\n"


def test_several_runs_have_one_closing_line() -> None:
    line = closing_line([ALONE, REST], 1600.0)
    assert " 1 failed, 3012 passed, 2 skipped in 1600.00s (0:26:40) " in line
    assert line.startswith("=")
    assert line.endswith("=")


def test_a_run_that_broke_off_is_an_error() -> None:
    assert " 12 passed, 1 error in 61.00s (0:01:01) " in closing_line([ALONE, "killed\n"], 61.0)
    assert " 2 errors in 1.00s " in closing_line(["", "Traceback"], 1.0)
