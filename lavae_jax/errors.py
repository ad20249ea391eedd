"""Errors whose message is for the user: it says what is wrong, and what to do."""


class UserError(Exception):
    """An error whose message programs print without a traceback."""
