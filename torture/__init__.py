"""torture: kills trainings at random moments, again and again, and holds their end against that of one left in peace.

make torture                      some 300 kills of one process, and 60 of two under torchrun
python -m torture --ranks 2       trainings of two processes each, under torchrun
python -m torture --help          more or fewer of them, other moments
"""
