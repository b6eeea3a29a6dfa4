"""Membership inference attacks on ordinary, spiking and neural-ODE/SDE networks. Use: `from mia_nb import attacks`."""

__version__ = "0.1.0"
