"""Structured output: what a grammar allows after an output so far. Nothing here knows of models, steps or Ray."""
