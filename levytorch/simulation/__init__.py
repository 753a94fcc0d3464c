"""Sampling trajectories of given dynamics: Euler-Maruyama (unbiased) and random-walk Metropolis (censored)."""

from levytorch.simulation.api import Simulated, simulate

__all__ = ["Simulated", "simulate"]
