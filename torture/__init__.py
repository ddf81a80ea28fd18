"""torture: kills trainings at random moments, resumes them, and compares the result with an uninterrupted one.

make torture                      about 300 kills of one process, and 60 of two processes under torchrun
python -m torture --ranks 2       trainings of two processes each, under torchrun
python -m torture --help          other numbers of kills, other seeds
"""
