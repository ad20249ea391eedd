"""A page to decompose and edit scenes; `launch/playground.py` opens it."""
