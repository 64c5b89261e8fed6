"""What can go wrong, as types.

::

    RatewiseError
    ├── InvalidInput (ValueError)        an argument has a value that cannot be used
    │   └── UnsupportedCombination       each argument is fine, together there is no sound answer
    ├── InvalidType (TypeError)          an argument is of the wrong kind
    ├── ClusterLost (RuntimeError)       the processes that hold a table cannot be reached
    └── LedgerError                      the ledger cannot be read or written
        ├── LedgerCorrupt                the file is truncated, edited by hand, or not a ledger
        ├── LedgerVersion                the file was written by an unknown version
        └── BudgetExceeded               a release was refused because it would pass the cap

    RatewiseWarning (UserWarning)
    ├── CertificateWarning               the budget is too small for a useful certificate
    └── SeedWarning                      noise was made from a seed, which must stay secret

Every message names the argument, the offending value and a way out. Messages never contain values of
private rows.
"""


class RatewiseError(Exception):
    """Base of every exception that ratewise raises on purpose."""


class InvalidInput(RatewiseError, ValueError):  # noqa: N818 - reads as what happened
    """An argument has a value that cannot be used."""


class UnsupportedCombination(InvalidInput):
    """Each argument is fine by itself, but no sound answer is known for them together."""


class InvalidType(RatewiseError, TypeError):  # noqa: N818
    """An argument is of the wrong kind."""


class ClusterLost(RatewiseError, RuntimeError):  # noqa: N818
    """The processes that hold a table cannot be reached, or lose its partitions again and again."""


class LedgerError(RatewiseError):
    """The ledger cannot be read, written, or extended."""


class LedgerCorrupt(LedgerError):  # noqa: N818
    """A ledger file is truncated, was edited by hand, or is no ledger at all."""


class LedgerVersion(LedgerError):  # noqa: N818
    """A ledger file was written in a format that this version does not know."""


class BudgetExceeded(LedgerError):  # noqa: N818
    """A release was refused, before it happened, because it would pass the cap."""


class RatewiseWarning(UserWarning):
    """Base of every warning that ratewise gives."""


class CertificateWarning(RatewiseWarning):
    """The intervals of the certificate will be too wide for the verdict "held"; known before training."""


class SeedWarning(RatewiseWarning):
    """Noise was made from a seed: whoever learns it can take the noise off."""
