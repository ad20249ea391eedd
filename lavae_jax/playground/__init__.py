"""A page where scenes come apart in your hands; `launch/playground.py` opens it."""
