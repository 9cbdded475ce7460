"""Tests of the streams between ranks."""
