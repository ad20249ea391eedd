"""The programs. `lavae COMMAND` and `python launch/COMMAND.py` call the same functions."""
