from launcher.stacks import threads, whereabouts, who_waits
from launcher.worker.activity import Phase
from tests.fake_posts import an_activity

LOOP = '  File "/v/launcher/worker/loop.py", line 95 in _train'
EXCHANGE = """
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/v/launcher/worker/exchange/transport/inbox.py", line 70 in take
  File "/v/launcher/worker/exchange/direct.py", line 120 in sum
  File "/v/tensorflow/python/ops/script_ops.py", line 268 in __call__
  File "/tmp/launch-calm-fox-a1b2/project/train.py", line 30 in <module>
  File "/v/launcher/worker/loop.py", line 95 in _train

Current thread 0x00007e (most recent call first):
  File "/v/ray/_private/worker.py", line 900 in main_loop
"""


def stacks(*frames: str) -> str:
    return "\n".join(["Thread 0x01 (most recent call first):", *frames, LOOP])


DATA = stacks(
    '  File "/usr/lib/python3.11/socket.py", line 700 in readinto',
    '  File "/tmp/launch-calm-fox-a1b2/project/data.py", line 12 in rows',
    '  File "/tmp/launch-calm-fox-a1b2/project/train.py", line 30 in <module>',
)
IN_TENSORFLOW = stacks(
    '  File "/v/tensorflow/python/eager/execute.py", line 53 in quick_execute',
    '  File "/tmp/launch-calm-fox-a1b2/project/train.py", line 30 in <module>',
)


def called_back(*frames: str) -> str:
    """Another thread, in which TensorFlow calls Python."""
    script_ops = '  File "/v/tensorflow/python/ops/script_ops.py", line 269 in __call__'
    return "\n".join(["Thread 0x02 (most recent call first):", *frames, script_ops, "", ""])


def test_the_training_thread_is_found_among_others() -> None:
    first, second = threads(EXCHANGE)
    assert len(first) == 6
    assert str(first[1]) == "inbox.py line 70 (take)"
    assert str(second[0]) == "worker.py line 900 (main_loop)"
    assert threads("Fatal Python error: Aborted") == []


def test_a_rank_that_waits_in_the_exchange_is_told_from_one_in_the_script() -> None:
    assert whereabouts(EXCHANGE, "calm-fox") == "waits for the others' gradients"
    assert whereabouts(DATA, "calm-fox") == "is in data.py line 12 (rows)"
    assert whereabouts("", "calm-fox") is None


def test_the_exchange_in_a_thread_of_tensorflows_own_is_found() -> None:
    other = called_back('  File "/v/launcher/worker/exchange/direct.py", line 120 in sum')
    assert whereabouts(other + IN_TENSORFLOW, "calm-fox") == "waits for the others' gradients"


def test_data_that_tensorflow_waits_for_is_found() -> None:
    other = called_back('  File "/tmp/launch-calm-fox-a1b2/project/data.py", line 16 in rows')
    words = whereabouts(other + IN_TENSORFLOW, "calm-fox")
    assert words == "waits in TensorFlow for data.py line 16 (rows)"


def test_a_call_of_tensorflow_names_the_line_of_the_script() -> None:
    words = whereabouts(IN_TENSORFLOW, "calm-fox")
    assert words == "is inside TensorFlow, called from train.py line 30 (<module>)"


def test_who_is_waited_for_comes_first_and_who_waits_last() -> None:
    workers = [an_activity(0), an_activity(1), an_activity(2, Phase.BETWEEN)]
    places = {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3"}
    text = who_waits(workers, {0: EXCHANGE, 1: EXCHANGE, 2: DATA}, places, "calm-fox")
    assert text == (
        "Rank 2 (10.0.0.3): is in data.py line 12 (rows), in the script's callbacks or "
        "data. Ranks 0 (10.0.0.1), 1 (10.0.0.2): waits for the others' gradients, in a step."
    )


def test_what_cannot_be_asked_is_said_as_it_is() -> None:
    workers = [an_activity(0, is_stopped=True), an_activity(1, is_alive=False), an_activity(2)]
    text = who_waits(workers, {}, {}, "calm-fox")
    assert "Rank 0 (?): its process is stopped." in text
    assert "Rank 1 (?): its process is gone." in text
    assert "Rank 2 (?): in a step; its stack is not known." in text
