"""Atomic files and JSON."""
