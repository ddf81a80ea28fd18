"""Sizes, durations and numbers as text."""
