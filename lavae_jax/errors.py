"""Errors whose message is for the user: what is wrong, and what to do."""


class UserError(Exception):
    """Programs print its message, without a traceback."""
