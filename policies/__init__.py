"""The recommender: pure functions from what was measured to a plan."""
