import pytest

from policies.wording import count, dollars, duration, ordinal, percent, share, size, workers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00052, "0.5 ms"),
        (0.041, "41 ms"),
        (0.9994, "999 ms"),
        (9.94, "9.9 s"),
        (12.3, "12 s"),
        (300.0, "5 min"),
        (3600.0, "1 h"),
        (4800.0, "1 h 20 min"),
        (500_000.0, "5.8 days"),
    ],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0"),
        (0.0042, "$0.0042"),
        (0.00002, "under $0.0001"),
        (0.13, "$0.13"),
        (1240.4, "$1,240"),
    ],
)
def test_dollars_read_well(usd, text):
    assert dollars(usd) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (12, "12 bytes"),
        (3_716, "3.7 kB"),
        (340_264, "340 kB"),
        (4_853_800, "4.9 MB"),
        (14_690_040, "14.7 MB"),
        (2.5e9, "2.5 GB"),
    ],
)
def test_sizes_read_well(n_bytes, text):
    assert size(n_bytes) == text


def test_counts_ranks_and_parts_are_words_where_people_use_words():
    assert (count(2), count(40)) == ("two", "40")
    assert (ordinal(5), ordinal(8), ordinal(11)) == ("a fifth", "an eighth", "an eleventh")
    assert (ordinal(21), ordinal(22), ordinal(113)) == ("a 21st", "a 22nd", "a 113th")
    assert (share(0.34), share(0.5), share(0.92)) == ("a third of", "half", "92 % of")
    assert (workers(1), workers(4)) == ("1 worker", "4 workers")
    assert (percent(0.005), percent(0.999), percent(0.4)) == ("under 1 %", "over 99 %", "40 %")
