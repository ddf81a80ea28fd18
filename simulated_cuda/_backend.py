"""The compiled part of the device. Its functions are those of `backend/module.cpp`."""

from simulated_cuda._build import load_backend

backend = load_backend()
