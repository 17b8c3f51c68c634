"""Tables to try the estimators on, and readers of common files."""

from __future__ import annotations

import csv
import gzip
import io
import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from papershelf import InputError, require
from papershelf.files import cache_folder, load_checkpoint, registry_asset, registry_assets, save_checkpoint
from papershelf.models import sentence_encoder

VADER = (
    "vaderSentiment==3.3.2",
    "vaderSentiment/vader_lexicon.txt",
    "1ec9c6e9ee19aade328f8beb393a6afa71a5bb3acf7d3cc22d4ef568df374bf5",
)
ISLP = "ISLP==0.6.0"
ISLP_FILES = {
    "ISLP/data/Bikeshare.csv": "ac6950ae6f11efcc69c29d6bb13e8881c001e27d36434660d59444a1414f712c",
    "ISLP/data/Hitters.csv": "ebf7b9dff89366b0544fea09c0ac2df9abdbf5b4ce8d96651316c2c12793d952",
    "ISLP/data/Khan_xtest.csv": "f620e7c092bebd62697c48d0eb586a94533aea9cc98b2ecb65a8c8c2bfe2d05d",
    "ISLP/data/Khan_xtrain.csv": "12148ef490588eb8ac9de3edc89551962a0499bfe78f39726ad58d8d72fd8e90",
    "ISLP/data/Khan_ytest.csv": "92fe0d43b0bb8351873102ca3651a39766c3708da37cf30042fa0fdc58ba01eb",
    "ISLP/data/Khan_ytrain.csv": "ac58f9c840e9e7c47bd17494cf0fe23e7fc9b5371e0d54c1a2a6038f45f637ab",
    "ISLP/data/NCI60data.npy": "c31dc79edc9560ae047a156644ad5abcd0001bb121ad8149ca4b9bd372b38073",
    "ISLP/data/NCI60labs.csv": "b1495c6b937d7f724de4e3065d4bd491e12c41da772a0665b596ae7b01ece16d",
}
MLXTEND = "mlxtend==0.25.0"
MLXTEND_FILES = {
    "mlxtend/data/data/autompg.csv.gz": "deb41efe69faf7bcbae72a2e4f0eb1dfed9b2151171251ae64c67ed8da33eec3",
    "mlxtend/data/data/boston_housing.csv": "8594f084258ead302f20a7479463f7a7584d33fe00042d442a7101530c8b46de",
    "mlxtend/data/data/mnist_5k.csv.gz": "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
}
MISSING_AIR = -200.0


class DataError(InputError):
    """A file that does not say what it should."""


@dataclass(frozen=True)
class Table:
    """Rows for regression; classes are one-hot targets.

    Attributes:
        name: of the table.
        X: (n, p), dense or sparse.
        y: (n,) or (n, q).
        test: held-out X and y where the file brings them, else None.
    """

    name: str
    X: Any
    y: np.ndarray
    test: tuple[Any, np.ndarray] | None = None

    def split(self, share: float, rng: np.random.Generator) -> Table:
        """A random split with this share (or, from 1 on, number) of rows for training; a given test set is kept."""
        if self.test is not None:
            return self
        n = self.X.shape[0]
        size = int(share) if share >= 1 else round(share * n)
        if not 2 <= size < n:
            raise DataError(f"{self.name}: expected between 2 and {n - 1} training rows, got {size}")
        order = rng.permutation(n)
        train, test = order[:size], order[size:]
        return Table(self.name, self.X[train], self.y[train], (self.X[test], self.y[test]))

    def standardised(self) -> Table:
        """Features and targets with mean 0 and deviation 1 by the training rows; constant columns are left at 0."""
        if self.test is None:
            raise DataError(f"{self.name}: split before standardising")
        X, X_test = _standardise(_dense(self.X), _dense(self.test[0]))
        y, y_test = _standardise(self.y, self.test[1])
        return Table(self.name, X, y, (X_test, y_test))


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if hasattr(X, "toarray") else np.asarray(X, dtype=float)


def _standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = train.mean(0), train.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return (train - mean) / deviation, (test - mean) / deviation


def one_hot(labels: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Classes as indicator columns in sorted order, (n, classes)."""
    classes, index = np.unique(np.asarray(labels), return_inverse=True)
    return np.eye(classes.size)[index]


# --- built in and out of registry packages -----------------------------------------------------------------------


def _sklearn(name: str) -> Callable[[], Table]:
    def load() -> Table:
        from sklearn import datasets

        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        classes = {"digits": True, "wine": True}.get(name, False)
        target = one_hot(y) if classes else 2.0 * y - 1.0 if name == "breast_cancer" else y
        return Table(name, np.asarray(X, dtype=float), np.asarray(target, dtype=float))

    return load


def _read_numbers(path: Path) -> list[list[str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file) if row]


def _nci60() -> Table:
    paths = registry_assets(ISLP, ISLP_FILES)
    X = np.load(paths["ISLP/data/NCI60data.npy"], allow_pickle=False)
    labels = [row[-1] for row in _read_numbers(paths["ISLP/data/NCI60labs.csv"])]
    return Table("nci60", np.asarray(X, dtype=float), one_hot(labels[-len(X) :]))


def _khan() -> Table:
    paths = registry_assets(ISLP, ISLP_FILES)

    def matrix(name: str) -> np.ndarray:
        rows = _read_numbers(paths[f"ISLP/data/{name}.csv"])
        width = len(rows[-1])
        numbers = [row[-width:] for row in rows if _is_number(row[-1])]
        return np.array(numbers, dtype=float)

    X, X_test = matrix("Khan_xtrain"), matrix("Khan_xtest")
    y, y_test = matrix("Khan_ytrain")[:, -1], matrix("Khan_ytest")[:, -1]
    both = one_hot(np.concatenate([y, y_test]))
    if X.shape[1] == 2309:  # a column of row numbers
        X, X_test = X[:, 1:], X_test[:, 1:]
    return Table("khan", X, both[: len(y)], (X_test, both[len(y) :]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _hitters() -> Table:
    return _with_categories("hitters", registry_assets(ISLP, ISLP_FILES)["ISLP/data/Hitters.csv"], "Salary")


def _bikeshare() -> Table:
    path = registry_assets(ISLP, ISLP_FILES)["ISLP/data/Bikeshare.csv"]
    return _with_categories("bikeshare", path, "bikers", drop=("casual", "registered"))


def _with_categories(name: str, path: Path, target: str, drop: tuple[str, ...] = ()) -> Table:
    """A CSV with words: those columns become indicators; rows without a target or a number are left out."""
    header, *rows = _read_numbers(path)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    if target not in columns:
        raise DataError(f"{path.name}: no column {target!r}; it has {', '.join(header)}")
    usable = np.array([all(cell not in ("", "NA", "NaN", "nan", "?") for cell in row) for row in rows])
    parts = []
    for column, cells in columns.items():
        if column == target or column in drop or column == "":
            continue
        kept = np.array(cells)[usable]
        if all(_is_number(cell) for cell in kept):
            parts.append(kept.astype(float)[:, None])
        else:
            parts.append(one_hot(kept)[:, 1:])
    chosen = np.array(columns[target])[usable]
    if not parts or not all(_is_number(cell) for cell in chosen):
        raise DataError(f"{path.name}: expected numbers in the target {target!r} and at least one other column")
    return Table(name, np.concatenate(parts, axis=1), chosen.astype(float))


def _mlxtend(name: str, target: int) -> Callable[[], Table]:
    def load() -> Table:
        paths = registry_assets(MLXTEND, MLXTEND_FILES)
        path = next(p for member, p in paths.items() if name in member)
        rows = np.array([row for row in _read_numbers(path) if _is_number(row[0])])
        values = np.array([[float(c) if _is_number(c) else np.nan for c in row] for row in rows])
        values = values[:, ~np.isnan(values).all(0)]
        values = values[~np.isnan(values).any(1)]
        y, X = values[:, target], np.delete(values, target, axis=1)
        return Table(name, X, one_hot(y) if name == "mnist_5k" else y)

    return load


def vader(target: str = "mean") -> Table:
    """Valence of 7,217 words from their MiniLM embeddings, 384 features.

    Args:
        target: ``"mean"``: average of ten ratings (noise variance about .105); ``"single_rating"``: the first rating
            of each word (about 1.05).
    """
    if target not in ("mean", "single_rating"):
        raise DataError(f"target must be mean or single_rating, got {target!r}")
    require("transformers", "papershelf-ridge-sd[text]")
    lines = registry_asset(*VADER).read_text(encoding="utf-8").splitlines()
    fields = [line.split("\t") for line in lines if line.strip()]
    kept = [f for f in fields if f[0].isalpha()]
    cache = cache_folder("ridge-sd") / "vader-minilm.npz"
    if cache.is_file():
        X = load_checkpoint(cache)["features"]
    else:
        X = sentence_encoder().encode([f[0] for f in kept], batch_size=256)
        save_checkpoint(cache, {"features": X})
    ratings = np.array([[float(x) for x in f[3].strip("[] \r").split(",")] for f in kept])
    y = np.array([float(f[1]) for f in kept]) if target == "mean" else ratings[:, 0]
    return Table(f"vader ({target})", np.asarray(X, dtype=float), y)


TABLES: dict[str, Callable[[], Table]] = {
    **{name: _sklearn(name) for name in ("diabetes", "digits", "breast_cancer", "wine", "linnerud")},
    "vader": vader,
    "vader-single": lambda: vader("single_rating"),
    "nci60": _nci60,
    "khan": _khan,
    "hitters": _hitters,
    "bikeshare": _bikeshare,
    "autompg": _mlxtend("autompg", 0),
    "boston_housing": _mlxtend("boston_housing", -1),
    "mnist_5k": _mlxtend("mnist_5k", -1),
}


# --- files -------------------------------------------------------------------------------------------------------


def load_table(source: str, target: str | None = None) -> Table:
    """A table by name, or from a file.

    - ``.npz`` with X, y and, if given, X_test, y_test; ``.npy`` features with ``target`` another ``.npy`` file;
    - ``.csv`` or ``.parquet`` with ``target`` naming the column (default: the last);
    - ``.svm``, ``.libsvm``, ``.svmlight``: sparse;
    - UCI's ``blogData_train.csv``, ``AirQualityUCI.csv``, ``communities.data`` as published;
    - a folder of CIFAR's python batches with ``target`` an ``.npz`` of features.

    Raises:
        DataError: saying what is wrong.
    """
    if source in TABLES:
        return TABLES[source]()
    path = Path(source)
    if not path.exists():
        raise DataError(f"no table or file {source!r}; named tables: {', '.join(TABLES)}")
    try:
        return _checked(_read(path, target))
    except DataError:
        raise
    except (ValueError, OSError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read(path: Path, target: str | None) -> Table:
    match path.suffix.lower():
        case ".npz":
            with np.load(path, allow_pickle=False) as file:
                missing = {"X", "y"} - set(file.files)
                if missing:
                    raise DataError(f"{path}: expected the arrays X and y, got {', '.join(file.files)}")
                test = (file["X_test"], file["y_test"]) if {"X_test", "y_test"} <= set(file.files) else None
                return Table(path.stem, file["X"], file["y"], test)
        case ".npy":
            if target is None:
                raise DataError(f"{path}: give the .npy file of the targets with --target")
            return Table(path.stem, np.load(path, allow_pickle=False), np.load(target, allow_pickle=False))
        case ".svm" | ".libsvm" | ".svmlight":
            from sklearn.datasets import load_svmlight_file

            X, y = load_svmlight_file(str(path))[:2]
            return Table(path.stem, X, y)
        case ".parquet":
            return _frame(require("pandas", "papershelf-ridge-sd[table]").read_parquet(path), path, target)
        case ".data" if path.name.startswith("communities"):
            return _communities(path)
        case ".csv" if path.name.startswith("blogData"):
            return _blog(path)
        case ".csv" if path.name.startswith("AirQuality"):
            return _air_quality(path, target)
        case ".csv":
            header = _read_numbers(path)[0]
            return _with_categories(path.stem, path, target or header[-1])
        case "" if path.is_dir():
            return _cifar(path, target)
    raise DataError(f"cannot read {path.name}: expected .npz, .npy, .csv, .parquet, .svm or a UCI or CIFAR original")


def _frame(frame: Any, path: Path, target: str | None) -> Table:
    name = frame.columns[-1] if target is None else target
    if name not in frame.columns:
        raise DataError(f"{path.name}: no column {name!r}; it has {', '.join(map(str, frame.columns))}")
    frame = frame.dropna()
    return Table(path.stem, frame.drop(columns=[name]).to_numpy(dtype=float), frame[name].to_numpy(dtype=float))


def _blog(path: Path) -> Table:
    values = np.loadtxt(path, delimiter=",", ndmin=2)
    return Table("blogfeedback", values[:, :-1], values[:, -1])


def _communities(path: Path) -> Table:
    """UCI Communities and Crime: five identifying columns go, so do columns with missing values; the last is the
    target."""
    values = np.array([[np.nan if cell == "?" else float(cell) for cell in row[5:]] for row in _read_numbers(path)])
    values = values[:, ~np.isnan(values).any(0)]
    return Table("communities", values[:, :-1], values[:, -1])


def _air_quality(path: Path, target: str | None) -> Table:
    """UCI Air Quality: semicolons, decimal commas, -200 for missing; rows with a missing value are left out."""
    text = path.read_text(encoding="latin-1").splitlines()
    header = [cell for cell in text[0].split(";") if cell][2:]
    rows = [line.split(";")[2 : 2 + len(header)] for line in text[1:] if line.strip(";")]
    values = np.array([[float(cell.replace(",", ".")) if cell else np.nan for cell in row] for row in rows])
    name = target or "CO(GT)"
    if name not in header:
        raise DataError(f"{path.name}: no column {name!r}; it has {', '.join(header)}")
    values[values == MISSING_AIR] = np.nan
    usable = (np.isnan(values).mean(0) < 0.5) | np.isin(header, name)
    values = values[:, usable]
    values = values[~np.isnan(values).any(1)]
    at = [h for h, keep in zip(header, usable, strict=True) if keep].index(name)
    return Table("airquality", np.delete(values, at, axis=1), values[:, at])


def _cifar(folder: Path, features: str | None) -> Table:
    """CIFAR-10 labels from the folder's python batches, with features (rows in the batches' order) from an .npz.

    The batches are pickles; they are read opcode by opcode for their label list and never executed.
    """
    if features is None:
        raise DataError(f"{folder}: give the .npz of features (array X) with --target")
    batches = sorted(folder.glob("data_batch_*")) + sorted(folder.glob("test_batch"))
    if not batches:
        raise DataError(f"{folder}: no files data_batch_*")
    labels = np.concatenate([pickled_labels(path.read_bytes()) for path in batches])
    with np.load(features, allow_pickle=False) as file:
        X = file["X"]
    if len(X) != len(labels):
        raise DataError(f"{features}: expected features of {len(labels)} pictures, got {len(X)}")
    return Table("cifar", X, one_hot(labels))


def pickled_labels(content: bytes) -> np.ndarray:
    """The integers of the list that follows the key ``labels`` in a pickle, without unpickling."""
    found: list[int] = []
    inside = False
    for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
        if argument in ("labels", b"labels"):
            inside = True
        elif inside and isinstance(argument, int) and opcode.name in ("BININT", "BININT1", "BININT2", "INT", "LONG1"):
            found.append(argument)
        elif found and (isinstance(argument, str | bytes) or opcode.name in ("SETITEMS", "SETITEM", "STOP")):
            break
    if not found:
        raise DataError("no list of labels in the batch")
    return np.array(found)


def _checked(table: Table) -> Table:
    X, y = table.X, np.asarray(table.y)
    if getattr(X, "ndim", 0) != 2 or y.ndim not in (1, 2) or X.shape[0] != y.shape[0] or X.shape[0] < 2:
        raise DataError(f"{table.name}: expected X (n, p) and y of n >= 2 rows, got {np.shape(X)} and {y.shape}")
    values = X.data if hasattr(X, "tocsr") else np.asarray(X)
    if not np.issubdtype(values.dtype, np.number) or not np.issubdtype(y.dtype, np.number):
        raise DataError(f"{table.name}: expected numbers, got {values.dtype} and {y.dtype}")
    if not np.isfinite(values).all() or not np.isfinite(y).all():
        raise DataError(f"{table.name}: values must be finite")
    return table
