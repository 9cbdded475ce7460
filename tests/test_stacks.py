from launcher.stacks import training_thread, whereabouts, who_waits
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


def test_the_training_thread_is_found_among_others() -> None:
    frames = training_thread(EXCHANGE)
    assert len(frames) == 6
    assert str(frames[1]) == "inbox.py line 70 (take)"
    assert training_thread("Fatal Python error: Aborted") == ()


def test_a_rank_that_waits_in_the_exchange_is_told_from_one_in_the_script() -> None:
    assert whereabouts(training_thread(EXCHANGE), "calm-fox") == "waits for the others' gradients"
    assert whereabouts(training_thread(DATA), "calm-fox") == "is in data.py line 12 (rows)"
    assert whereabouts((), "calm-fox") is None


def test_a_call_of_tensorflow_names_the_line_of_the_script() -> None:
    frames = training_thread(
        stacks(
            '  File "/v/tensorflow/python/eager/execute.py", line 53 in quick_execute',
            '  File "/tmp/launch-calm-fox-a1b2/project/train.py", line 30 in <module>',
        )
    )
    words = whereabouts(frames, "calm-fox")
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
