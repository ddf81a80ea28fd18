"""The contenders of benchmarks/fit.py, a file each, as their documentation would have the toy trained.

Each has `fit(epochs, loss=None)`: it trains the toy from its first weights and gives back the trained model and the
number of updates that the contender itself counted. `loss(predictions, targets)`, where given, takes the place of the
mean squared error: the frame counter comes in that way.
"""
