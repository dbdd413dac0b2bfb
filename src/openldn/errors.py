"""What can go wrong for a user, as types: each message is one sentence on what is wrong and what to do."""


class UserError(ValueError):
    """Something that was given cannot be used; the message says what, and what to do instead."""


class Diverged(ArithmeticError):
    """A loss or a weight is not finite any more; the message names the step, the term and the checkpoint."""


class OpenLDNWarning(UserWarning):
    """The run goes on, but its owner should know."""
