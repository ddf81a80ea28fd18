"""Nested structures of tensors: mappings, lists, tuples, dataclasses."""
