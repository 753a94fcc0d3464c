"""Engines: how the likelihood is maximised. Each is a strategy used by the one LightningModule."""

from levytorch.training.engines.base import ENGINES, Engine, build_engine, engine_class

__all__ = ["ENGINES", "Engine", "build_engine", "engine_class"]
