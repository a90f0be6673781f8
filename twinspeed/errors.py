"""Errors that speak to the person: what was wrong, where, and what to do."""


class TwinspeedError(Exception):
    """Base of every error whose message is shown to the user as one line.

    The command line prints the message and exits with `exit_code`; no traceback.
    """

    exit_code = 1


class InputError(TwinspeedError):
    """The user's input is at fault: a missing folder, a wrong hash, a taken port, an unknown variant."""

    exit_code = 2
