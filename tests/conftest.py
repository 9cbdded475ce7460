"""Settings of all tests."""

from hypothesis import settings

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("launch", deadline=None)
settings.load_profile("launch")
