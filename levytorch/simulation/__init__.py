"""Sampling trajectories of given dynamics by Euler-Maruyama steps."""

from levytorch.simulation.api import Simulated, simulate

__all__ = ["Simulated", "simulate"]
