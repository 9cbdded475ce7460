"""Settings of all tests."""

import signal

from hypothesis import settings

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("explore", deadline=None)
# The same examples each time: a test that fails does so for whoever changed something, and not for
# somebody else by chance. Look for new ones with `scripts/test --hypothesis-profile=explore`.
settings.register_profile("launch", deadline=None, derandomize=True)
settings.load_profile("launch")

# What started the tests (nohup, a shell's background) may have had these ignored, which every
# process would inherit that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
