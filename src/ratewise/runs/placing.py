"""How a folder gets its name: in one step, only where it may be, and never at the cost of an earlier book."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ratewise.exceptions import InvalidInput
from ratewise.whole_files import flush_folder, named, write_whole


def refuse_taken(target: Path, force: bool, hint: str = "or --force to replace a run") -> None:
    """Refuse a place that is taken; with `force`, any but that of an earlier run."""
    if not os.path.lexists(target):
        return
    if not force:
        raise InvalidInput(f"{str(target)!r} exists already; take another --out{', ' * bool(hint)}{hint}")
    if not (target / "run.json").is_file():
        raise InvalidInput(f"{str(target)!r} is no run folder, and --force replaces nothing else")


def refuse_unwritable(target: Path) -> None:
    """Refuse a place where nothing can be written, by writing there: before rows are read or budget is spent.

    Nothing is left behind. Folders on the way that do not exist yet are not made.
    """
    place = target.parent
    while not os.path.lexists(place):
        place = place.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".ratewise.", suffix=".tmp", dir=place))
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise InvalidInput(
            f"cannot write {str(target)!r}: {reason} ({str(place)!r}); nothing was spent: take another --out"
        ) from None


def draft_beside(target: Path) -> Path:
    """Return a new hidden folder beside the target, with the folders on the way."""
    with named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))


def place_of(ledger: str | os.PathLike[str], target: Path) -> str:
    """Return where the book is: beside the run, it is found again when both are moved."""
    place = Path(os.path.abspath(ledger))
    return os.path.join("..", place.name) if place.parent == target.parent else str(place)


def keep_books(old: Path, draft: Path) -> None:
    """Copy the books of the run that is replaced, and of those that it replaced.

    That of its training, and that of private evaluations: what was spent on those rows stays spent too.
    """
    for name in ("ledger", "evaluations"):
        kept = sorted((old / "earlier").glob(f"{name}-*.json"), key=lambda book: (len(book.name), book.name))
        current = old / f"{name}.json"
        for number, book in enumerate([*kept, *([current] if current.is_file() else [])], start=1):
            (draft / "earlier").mkdir(exist_ok=True)
            write_whole(draft / "earlier" / f"{name}-{number}.json", book.read_bytes())


def take_place(draft: Path, target: Path) -> None:
    """Give the folder its name; an earlier run steps aside first and is removed last."""
    with named(target):
        aside = None
        if os.path.lexists(target):
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
            os.replace(target, aside / "run")
        os.rename(draft, target)
        flush_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
