"""Plan, session, loop and dual update of a training run."""
