"""Engines: the only code that reads rows during a training step."""
