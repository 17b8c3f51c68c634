"""Readers: the public Community Notes files, Polis exports, triples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from papershelf import InputError
from papershelf.files import load_checkpoint, save_checkpoint
from synthetic_consensus.data import named
from synthetic_consensus.mf import BridgingMF, Ratings

CHUNK = 1_000_000
LEVELS = {"HELPFUL": 1.0, "SOMEWHAT_HELPFUL": 0.5, "NOT_HELPFUL": 0.0}
RATING_COLUMNS = ("noteId", "raterParticipantId", "createdAtMillis")
LABEL_COLUMNS = ("helpfulnessLevel", "helpful", "notHelpful")
NOTE_COLUMNS = ("noteId", "noteAuthorParticipantId", "createdAtMillis", "tweetId", "classification")


class SchemaError(InputError):
    """A file whose columns are not those of the published format."""


@dataclass(frozen=True)
class CommunityNotes:
    """The public files.

    Attributes:
        ratings: labelled ratings.
        notes: frame of the notes, or None.
        history: frame of the status history, or None.
        enrollment: frame of the raters' enrollment, or None.
    """

    ratings: Ratings
    notes: Any = None
    history: Any = None
    enrollment: Any = None


def _files(folder: Path, stem: str) -> list[Path]:
    pattern = re.compile(rf"{stem}-\d+\.(tsv|tsv\.gz|tsv\.zip|zip)$")
    return sorted(path for path in folder.iterdir() if pattern.match(path.name))


def _chunks(path: Path, columns: tuple[str, ...], optional: tuple[str, ...]) -> Iterator[Any]:
    """Chunks of a TSV with the wanted columns, ids as whole numbers or text, never as floats."""
    import pandas as pd

    header = list(pd.read_csv(path, sep="\t", nrows=0).columns)
    missing = [name for name in columns if name not in header]
    if missing:
        extra = [name for name in header if name not in (*columns, *optional)]
        raise SchemaError(
            f"{path.name}: missing columns {', '.join(missing)}; other columns there: {', '.join(extra) or 'none'}"
        )
    wanted = [name for name in header if name in (*columns, *optional)]
    types = {name: "string" for name in wanted if name.endswith("Id") and name != "noteId"}
    with pd.read_csv(path, sep="\t", usecols=wanted, dtype=types, chunksize=CHUNK, low_memory=False) as reader:
        for chunk in reader:
            if chunk["noteId"].dtype.kind == "f":
                raise SchemaError(
                    f"{path.name}: note ids came as floats, which lose digits above 2^53: read ids as int64/str"
                )
            yield chunk


def _labels(chunk: Any) -> np.ndarray:
    """Levels of ratings: helpfulnessLevel where given, else the first version's two columns; NaN where nothing is."""
    value = np.full(len(chunk), np.nan)
    for name, level in (("helpful", 1.0), ("notHelpful", 0.0)):
        if name in chunk:
            value[chunk[name].to_numpy() == 1] = level
    if "helpfulnessLevel" in chunk:
        level = chunk["helpfulnessLevel"].map(LEVELS).to_numpy(dtype=float)
        value = np.where(np.isnan(level), value, level)
    return value


def load_community_notes(folder: Path | str) -> CommunityNotes:
    """Read the public TSVs of a folder: ``ratings-*.tsv`` (any number of files) and, where there, ``notes-*``,
    ``noteStatusHistory-*`` and ``userEnrollment-*``; also ``.gz`` and ``.zip``. Read in chunks, the last rating of a
    pair counts.

    Raises:
        SchemaError: naming missing columns and the file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    files = _files(root, "ratings")
    if not files:
        raise InputError(f"{root} has no ratings-*.tsv")
    raters: dict[Any, int] = {}
    parts: list[tuple[np.ndarray, ...]] = []
    for path in files:
        for chunk in _chunks(path, RATING_COLUMNS, (*LABEL_COLUMNS, "version", "ratingSourceBucketed")):
            value = _labels(chunk)
            keep = ~np.isnan(value)
            ids = chunk["raterParticipantId"].to_numpy()[keep]
            index = np.fromiter((raters.setdefault(x, len(raters)) for x in ids), np.int32, ids.size)
            source = (
                (chunk["ratingSourceBucketed"] == "POPULATION_SAMPLED").fillna(False).to_numpy()[keep]
                if "ratingSourceBucketed" in chunk
                else np.zeros(ids.size, bool)
            )
            time = chunk["createdAtMillis"].to_numpy(dtype=np.int64)[keep]
            parts.append((index, chunk["noteId"].to_numpy()[keep], value[keep], source.astype(np.int8), time))
    rater, note, value, source, time = (np.concatenate(x) for x in zip(*parts, strict=True))
    order = np.argsort(time, kind="stable")
    names = np.array(list(raters), dtype=object)
    labels = names[rater[order]].astype(str)
    ratings = Ratings.of(labels, note[order], value[order], duplicates="last", source=source[order], time=time[order])
    return CommunityNotes(
        ratings, _table(root, "notes", NOTE_COLUMNS), _table(root, "noteStatusHistory", ("noteId",)), _enrollment(root)
    )


def _table(root: Path, stem: str, columns: tuple[str, ...]) -> Any:
    import pandas as pd

    files = _files(root, stem)
    if not files:
        return None
    known = ("currentStatus", "lockedStatus", "timestampMillisOfFirstNonNMRStatus")
    return pd.concat([chunk for path in files for chunk in _chunks(path, columns, known)], ignore_index=True)


def _enrollment(root: Path) -> Any:
    import pandas as pd

    files = _files(root, "userEnrollment")
    return (
        pd.concat([pd.read_csv(path, sep="\t", dtype="string") for path in files], ignore_index=True) if files else None
    )


def load_polis(folder: Path | str) -> Ratings:
    """A Polis export: ``votes.csv`` (disagree -1, pass 0, agree 1 become 0, .5, 1), or the wide
    ``participants-votes.csv``."""
    import pandas as pd

    root = Path(folder)
    if (root / "votes.csv").is_file():
        table = pd.read_csv(root / "votes.csv")
        names = ("comment-id", "voter-id", "vote")
        missing = [name for name in names if name not in table]
        if missing:
            raise SchemaError(f"votes.csv: missing columns {', '.join(missing)}; it has {', '.join(table.columns)}")
        if "timestamp" in table:
            table = table.sort_values("timestamp", kind="stable")
        comment, voter, vote = (table[name].to_numpy() for name in names)
    elif (root / "participants-votes.csv").is_file():
        wide = pd.read_csv(root / "participants-votes.csv")
        columns = [name for name in wide.columns if str(name).isdigit()]
        if not columns or "participant" not in wide:
            raise SchemaError(
                "participants-votes.csv: expected the column participant and one numbered column a comment"
            )
        long = wide.melt(id_vars="participant", value_vars=columns).dropna()
        comment, voter, vote = (
            long["variable"].astype(int).to_numpy(),
            long["participant"].to_numpy(),
            long["value"].to_numpy(),
        )
    else:
        raise InputError(f"{root} has neither votes.csv nor participants-votes.csv")
    return Ratings.of(voter, comment, (np.asarray(vote, dtype=float) + 1) / 2, duplicates="last")


def load_triples(path: Path | str, names: tuple[str, str, str] = ("rater", "note", "value")) -> Ratings:
    """Triples from CSV, TSV or Parquet; also Surprise's and RecBole's ``user item rating`` with a header."""
    import pandas as pd

    source = Path(path)
    if not source.is_file():
        raise InputError(f"no file {str(source)!r}")
    suffix = source.suffix.lower()
    if suffix not in (".csv", ".tsv", ".inter", ".parquet"):
        raise InputError(f"cannot read {source.name}: expected .csv, .tsv, .inter or .parquet")
    table = (
        pd.read_parquet(source) if suffix == ".parquet" else pd.read_csv(source, sep="," if suffix == ".csv" else "\t")
    )
    table.columns = [str(c).split(":")[0] for c in table.columns]
    other = {"rater": ("user", "user_id"), "note": ("item", "item_id"), "value": ("rating",)}
    picked = [next((c for c in (name, *other.get(name, ())) if c in table), None) for name in names]
    missing = [name for name, found in zip(names, picked, strict=True) if found is None]
    if missing:
        raise SchemaError(f"{source.name}: missing columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    rater, note, value = (table[c].to_numpy() for c in picked)
    if note.dtype.kind == "f":
        raise SchemaError(
            f"{source.name}: note ids came as floats, which lose digits above 2^53: read ids as int64/str"
        )
    return Ratings.of(rater, note, value, duplicates="last")


def load_ratings(source: str) -> Ratings:
    """Ratings by name (:func:`synthetic_consensus.data.named`), a folder of Community Notes or Polis, or a file of
    triples."""
    path = Path(source)
    if path.is_dir():
        return load_community_notes(path).ratings if _files(path, "ratings") else load_polis(path)
    return load_triples(path) if path.exists() or path.suffix else named(source)


# --- saved models ------------------------------------------------------------------------------------------------


def save_model(model: BridgingMF, path: Path | str) -> Path:
    """Write a fitted model with its ratings to one .npz file, atomically."""
    data = model.ratings_
    if data is None:
        raise InputError("the model is not fitted")
    names = ("mu_", "rater_intercept_", "rater_factor_", "note_intercept_", "note_factor_", "ratio_", "loss_", "kkt_")
    tree = {
        "params": model.get_params(),
        "fitted": {name: getattr(model, name) for name in names},
        "converged": model.converged_,
        "ratings": {name: getattr(data, name) for name in ("rater", "note", "value", "rater_ids", "note_ids")},
    }
    return save_checkpoint(Path(path), tree)


def load_model(path: Path | str) -> BridgingMF:
    """Read what :func:`save_model` wrote; never unpickles."""
    tree = load_checkpoint(Path(path))
    if not isinstance(tree, dict) or "fitted" not in tree:
        raise InputError(f"{path} holds no model of synthetic-consensus")
    model = BridgingMF(**tree["params"])
    for name, value in tree["fitted"].items():
        setattr(model, name, value)
    model.converged_ = bool(tree["converged"])
    model.ratings_ = Ratings(**tree["ratings"])
    return model
