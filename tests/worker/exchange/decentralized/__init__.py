"""Tests of the exchange between workers, without TensorFlow."""
