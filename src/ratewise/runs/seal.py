"""Which bytes belong to a run: digests that run.json keeps of the other files, of the book, and of itself.

They tell a file of this run from one of another run, from an older copy and from an edited one. They are no
signature: whoever may write in the folder can also write new digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ratewise.accounting import Ledger
from ratewise.accounting.book import canonical, strict_json


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sealed(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the digest of all its other fields.

    >>> is_sealed(sealed({"status": "finished"}))
    True
    >>> is_sealed({**sealed({"status": "finished"}), "status": "training"})
    False
    """
    fields = {name: value for name, value in description.items() if name != "sha256"}
    return {**fields, "sha256": digest(canonical(fields).encode("ascii"))}


def is_sealed(description: Mapping[str, Any]) -> bool:
    """Tell whether the fields are those that were sealed."""
    return bool(sealed(description)["sha256"] == description.get("sha256"))


def book_mark(ledger: Ledger, records: int | None = None) -> dict[str, Any]:
    """Return what tells a book from any other: how many records it has, and a digest of them and its head.

    A book only grows, so its first `records` records (None: all) have the same mark for ever.
    """
    document = strict_json(ledger.to_json())
    lines = [canonical(part) for part in (document["book"], *document["records"][:records])]
    return {"records": len(lines) - 1, "sha256": digest("\n".join(lines).encode("ascii"))}
