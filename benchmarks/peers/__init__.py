"""The contenders, one module for each library, written as its documentation shows.

Each has `fit(work, epochs, clock)`: it trains the workload from its first weights, calls the clock at the end of every
epoch, and returns the trained model and the number of updates that the library counted. Modules that are used for the
toy only handle only what the toy needs.
"""

from tests.torchvision_ops import declare

declare()  # several of the libraries import torchvision
