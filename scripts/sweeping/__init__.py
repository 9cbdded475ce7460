"""The parts of the sweep."""
