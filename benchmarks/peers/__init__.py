"""The contenders, a file each, as their documentation would have a workload trained.

Each has `fit(work, epochs, clock)`: it trains the workload from its first weights, calls the clock at the end of every
epoch, and gives back the trained model and the number of updates that the contender itself counted. Those that are
beside the toy only take what the toy needs of a workload.
"""
