"""Sampling trajectories of given dynamics: Euler-Maruyama (unbiased) and random-walk Metropolis (censored)."""

from levytorch.simulation.simulate import Simulated, simulate

__all__ = ["Simulated", "simulate"]
