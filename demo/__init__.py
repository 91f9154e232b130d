"""A click log, a small model, and two ranks that prove what they delivered."""
