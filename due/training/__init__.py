"""Training: a recipe, and the one loop that follows it."""

from due.training.checkpointing import checkpointing
from due.training.loop import DivergenceError, History, fit
from due.training.recipe import Recipe

__all__ = ["DivergenceError", "History", "Recipe", "checkpointing", "fit"]
