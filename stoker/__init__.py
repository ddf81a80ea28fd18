"""stoker trains PyTorch models."""
