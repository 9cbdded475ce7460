from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import quantities as q
from launcher.config import Environment, Flags, Request, cluster_options, make_storage
from launcher.errors import UsageError
from launcher.request import make_request, resume_request
from policies.schema import Asynchrony

HOME = Path("/home/ada")


def environment(**variables: str) -> Environment:
    return Environment.read({"HOME": str(HOME), **variables}, cwd=Path("/project"))


def request(flags: Flags | None = None, **variables: str) -> Request:
    return make_request(
        "train.py", (), flags or Flags(), environment(**variables), draw_seed=lambda: 7
    )


@pytest.mark.parametrize(
    "text", ["5", "$5", "5usd", "5 USD", "$ 5", "5$", "5.00", " 5 ", "USD 5", "US$5"]
)
def test_a_budget_is_dollars_however_written(text: str) -> None:
    assert request(Flags(budget=text)).budget_usd == 5.0


def test_a_comma_parts_thousands_and_never_cents() -> None:
    assert request(Flags(budget="1,500")).budget_usd == 1500.0
    assert request(Flags(budget="$12,345.60")).budget_usd == 12_345.6
    for text in ("4,50", "0,5", "1,5000", "1,50.0", ",500"):
        with pytest.raises(UsageError, match=r"not an amount of US dollars.*4\.50"):
            request(Flags(budget=text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "--budget is 0, and a run needs more than"),
        ("-3", "--budget is -3"),
        ("abc", "--budget 'abc' is not an amount"),
        ("", "--budget '' is not an amount"),
        ("nan", "not an amount"),
        ("inf", "not an amount"),
        ("1e999", "not an amount"),
        ("5 EUR", "not an amount"),
        ("1e9", "is that a typo"),
    ],
)
def test_a_senseless_budget_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        request(Flags(budget=text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("2d", 172_800), ("45", 45), ("1.5h", 5400)],
)
def test_a_deadline_is_a_time_span(text: str, seconds: float) -> None:
    assert request(Flags(deadline=text)).deadline_s == seconds


@pytest.mark.parametrize("text", ["soon", "0", "-5m", "m30", "1h1h", "", "nan", "3w"])
def test_a_senseless_deadline_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time span"):
        request(Flags(deadline=text))


def test_a_deadline_over_a_year_is_a_typo() -> None:
    with pytest.raises(UsageError, match="over a year"):
        request(Flags(deadline="1000d"))


@pytest.mark.parametrize(
    ("word", "uri"),
    [
        ("set", "/project/set"),
        ("~/set", "/home/ada/set"),
        ("file:///mnt/my%20set", "/mnt/my set"),
        ("s3://bucket/set", "s3://bucket/set"),
        ("https://host/x.csv?sig=1", "https://host/x.csv?sig=1"),
    ],
)
def test_data_are_a_path_or_a_uri(word: str, uri: str) -> None:
    assert request(Flags(data=[word])).data == (uri,)


def test_data_may_be_several_and_come_by_the_variable() -> None:
    assert request(LAUNCH_DATA="'my set' gs://bucket/b").data == (
        "/project/my set",
        "gs://bucket/b",
    )
    assert request(Flags(data=["a", "b"]), LAUNCH_DATA="c").data == ("/project/a", "/project/b")
    assert request().data == ()
    with pytest.raises(UsageError, match=r"LAUNCH_DATA cannot be read: .* Close its quotes"):
        request(LAUNCH_DATA="'open")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags(data=[" "]), "--data is empty"),
        (Flags(data=["file://set"]), "--data file://set has no absolute path. Write file:///"),
        (Flags(storage="file://a/b"), "--storage file://a/b has no absolute path"),
        (Flags(data=["ftp://ada:secret@host/x"]), r"--data ftp://host/x: ftp:// is not known"),
        (Flags(data_price="dear"), "is not a price of data"),
        (Flags(cache="cache"), "--cache cache is a folder on every node: begin it with / or ~/"),
        (Flags(cache_size="large"), "is not a size"),
    ],
)
def test_senseless_data_are_refused(flags: Flags, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request(flags)


def test_workers_are_auto_or_a_count() -> None:
    assert request(Flags(workers="auto")).workers is None
    assert request(Flags(workers="3")).workers == 3
    assert request().workers is None


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_senseless_workers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--workers .* is not a number of workers"):
        request(Flags(workers=text))
    with pytest.raises(UsageError, match=r"--max-workers .* is not a number of workers"):
        request(Flags(max_workers=text))


def test_more_workers_than_the_maximum_are_refused() -> None:
    with pytest.raises(UsageError, match="--workers 4 is more than --max-workers 2"):
        request(Flags(workers="4", max_workers="2"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags(workers="1000000"), "is that a typo"),
        (Flags(objective="speed"), "Choose time or cost"),
        (Flags(strategy="gossip"), "Choose auto, allreduce, direct or decentralized"),
        (Flags(cpus_per_worker="0"), "must be a number above 0"),
        (Flags(gpus_per_worker="-1"), "0 or more"),
        (Flags(price="-1"), "is not a price"),
        (Flags(explore="120%"), "not a share"),
        (Flags(seed="-1"), "is not a seed"),
        (Flags(name="../x"), "cannot be a run's name"),
        (Flags(max_folder="many"), "is not a size"),
        (Flags(cache_size="9" * 400), "is that a typo"),
        (Flags(strategy="decentralized", max_staleness="0"), "is not an age in steps"),
        (Flags(strategy="decentralized", transfer_every="-1"), "is not a number of steps"),
        (Flags(strategy="decentralized", transfer_part="0"), "is not a part of a whole"),
        (Flags(max_staleness="8"), "Add --strategy decentralized, or --allow-approximate"),
        (Flags(strategy="decentralized", sync_batchnorm=True), "Leave one of them out"),
        (Flags(address=" "), "--address is empty"),
        (Flags(storage=""), "--storage is empty"),
    ],
)
def test_each_senseless_option_names_itself_and_the_remedy(flags: Flags, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request(flags)


def test_flags_win_over_variables_and_variables_over_defaults() -> None:
    assert request(LAUNCH_BUDGET="3").budget_usd == 3
    assert request(Flags(budget="4"), LAUNCH_BUDGET="3").budget_usd == 4
    assert request().budget_usd is None
    assert request(LAUNCH_YES="1").yes
    assert not request(Flags(yes=False), LAUNCH_YES="1").yes


def test_how_far_workers_may_drift_is_asked_for_with_the_strategy_or_the_permission() -> None:
    words = {"max_staleness": "none", "transfer_every": "0", "transfer_part": "50%"}
    for asked in ({"strategy": "decentralized"}, {"allow_approximate": True}):
        limits = request(Flags(**words, **asked)).limits  # type: ignore[arg-type]
        assert limits.asynchrony == Asynchrony(None, 0, 0.5)
    assert not request().limits.allow_approximate
    assert request(Flags(strategy="decentralized")).limits.asynchrony == Asynchrony()


def test_a_senseless_variable_is_named() -> None:
    with pytest.raises(UsageError, match="LAUNCH_BUDGET 'abc'"):
        request(LAUNCH_BUDGET="abc")
    with pytest.raises(UsageError, match="LAUNCH_YES is 'maybe'"):
        request(LAUNCH_YES="maybe")
    with pytest.raises(UsageError, match="Did you mean LAUNCH_BUDGET"):
        request(LAUNCH_BUGDET="5")


def test_a_scripts_parameters_are_a_json_object() -> None:
    assert request().params is None
    assert request(LAUNCH_PARAMS='{"rate": 0.1}').params == '{"rate": 0.1}'
    for text in ("rate=0.1", "[1]"):
        with pytest.raises(UsageError, match="is not a JSON object"):
            request(LAUNCH_PARAMS=text)


def test_a_foreign_launch_variable_is_left_alone() -> None:
    assert request(LAUNCH_DARKLY_KEY="x").budget_usd is None


def test_a_tf_config_that_is_already_set_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TF_CONFIG is already set .*unset TF_CONFIG"):
        request(TF_CONFIG='{"cluster": {}}')


def test_another_backend_of_keras_is_refused() -> None:
    with pytest.raises(UsageError, match="KERAS_BACKEND is 'jax'"):
        request(KERAS_BACKEND="jax")
    assert request(KERAS_BACKEND="tensorflow").script == Path("/project/train.py")


def test_paths_are_absolute_and_home_is_expanded() -> None:
    env = environment()
    assert make_storage(None, env) == "/home/ada/launch"
    assert make_storage("~/x", env) == "/home/ada/x"
    assert make_storage("out", env) == "/project/out"
    assert make_storage("s3://bucket/launch/", env) == "s3://bucket/launch"
    assert make_storage(None, environment(LAUNCH_STORAGE="/data")) == "/data"


def test_every_option_reaches_the_request() -> None:
    found = request(
        Flags(
            objective="cost",
            max_workers="8",
            strategy="allreduce",
            cpus_per_worker="1.5",
            gpus_per_worker="0",
            address="10.0.0.4:6379",
            name="otter",
            price="$0.34/h",
            checkpoint_every="2m",
            sync_batchnorm=True,
            explore="5%",
            max_folder="2GB",
        )
    )
    assert found.limits.strategy == "allreduce"
    assert (found.limits.objective, found.limits.max_workers) == ("cost", 8)
    assert (found.limits.cpus_per_worker, found.limits.gpus_per_worker) == (1.5, 0.0)
    assert (found.address, found.name, found.price_usd_per_h) == ("10.0.0.4:6379", "otter", 0.34)
    assert (found.checkpoint_every_s, found.sync_batchnorm) == (120.0, True)
    assert (found.explore, found.max_folder_bytes) == (0.05, 2_000_000_000)


def test_a_seed_is_drawn_only_when_none_is_given() -> None:
    assert request().seed == 7
    assert request(Flags(seed="0")).seed == 0


def test_a_process_without_a_home_or_a_folder_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown_user() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown_user)
    with pytest.raises(UsageError, match=r"HOME is not set.*Set HOME"):
        Environment.read({}, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UsageError, match=r"current folder cannot be used: No such file.*cd"):
        Environment.read({"HOME": "/home/ada"})


def test_the_environment_shows_what_the_rest_needs() -> None:
    env = environment(RAY_ADDRESS="a:1", TF_USE_LEGACY_KERAS="True", PYTHONDONTWRITEBYTECODE="1")
    assert env.ray_address == "a:1"
    assert env.tf_use_legacy_keras
    assert env.no_byte_code
    assert env.state_dir == HOME / ".launch"


def resumed(flags: Flags, spent_usd: float = 2.0, **options: bool) -> Request:
    before = request(Flags(budget="5", workers="3", seed="9"))
    return resume_request(before, flags, environment(), run="otter", spent_usd=spent_usd, **options)


def test_a_resumed_run_has_what_is_left_of_its_budget_or_a_new_one() -> None:
    assert resumed(Flags()).budget_usd == 3.0
    assert resumed(Flags(budget="4")).budget_usd == 4.0
    unlimited = resume_request(request(), Flags(), environment(), run="otter", spent_usd=2.0)
    assert unlimited.budget_usd is None


def test_a_resumed_run_keeps_its_options_but_those_given_now() -> None:
    again = resumed(Flags(max_workers="4", yes=True))
    assert (again.workers, again.seed) == (3, 9)
    assert (again.max_workers, again.yes) == (4, True)
    with pytest.raises(UsageError, match="--workers 3 is more than --max-workers 2"):
        resumed(Flags(max_workers="2"))


def test_a_resumed_run_is_never_a_dry_one() -> None:
    before = request(Flags(budget="5"))
    again = environment(LAUNCH_DRY_RUN="1")
    with pytest.raises(UsageError, match="unset LAUNCH_DRY_RUN"):
        resume_request(before, Flags(), again, run="otter", spent_usd=0.0)


def test_a_used_up_budget_asks_for_a_new_one() -> None:
    with pytest.raises(UsageError, match=r"otter has used its budget.*resume otter --budget 5"):
        resumed(Flags(), spent_usd=4.99)
    with pytest.raises(UsageError, match="has used its budget"):
        resumed(Flags(), stopped_at_budget=True)


def test_a_size_may_be_in_terabytes() -> None:
    assert q.parse_bytes("1.5TB", "--cache-size") == 15 * 10**11
    assert q.parse_bytes("2 TiB", "--cache-size") == 2**41


def test_a_probe_has_an_address_and_a_price() -> None:
    assert cluster_options(Flags(price="0.5"), environment(LAUNCH_ADDRESS="a:1")) == ("a:1", 0.5)


@given(st.floats(min_value=0.01, max_value=1e6))
def test_any_sensible_amount_survives_a_round_trip(amount: float) -> None:
    assert q.parse_budget_usd(f"${amount!r}", "--budget") == amount


@given(st.text())
def test_a_parser_gives_a_value_or_one_line(text: str) -> None:
    for parse in (q.parse_budget_usd, q.parse_duration_s, q.parse_auto_workers, q.parse_bytes):
        try:
            parse(text, "--x")
        except UsageError as error:
            assert "--x" in str(error)


def test_waiting_for_busy_nodes_is_off_unless_asked_for() -> None:
    assert request().wait_s == 0
    assert request(Flags(wait="10m")).wait_s == 600
    assert request(LAUNCH_WAIT="90s").wait_s == 90
    with pytest.raises(UsageError, match="--wait 'long' is not a time span"):
        request(Flags(wait="long"))
