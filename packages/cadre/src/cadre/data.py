"""Climate series from files of any common kind, and real data out of registry packages, ready for the estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cadre.estimator import check_times, interpolate_missing
from cadre.forecast import harmonics
from cadre.windows import WindowDataset
from papershelf import InputError, require
from papershelf.files import debian_assets, registry_asset

EXTRA = "papershelf-cadre[data]"
LATITUDES = ("lat", "latitude", "COADSY", "FNOCY", "nav_lat", "TLAT", "y")
LONGITUDES = ("lon", "longitude", "COADSX", "FNOCX", "nav_lon", "TLONG", "x")
TIMES = ("time", "valid_time", "TIME", "date", "datetime")
DAYS_A_YEAR = 365.2425
SEASONS = ("none", "monthly", "daily", "harmonics")


class DataError(InputError):
    """A file that does not hold what it should."""


@dataclass(frozen=True)
class Preset:
    """Names of an archive: variables in the order in which they are tried, and dimensions of size 1 to drop."""

    variables: tuple[str, ...]
    squeeze: tuple[str, ...] = ()


PRESETS: Mapping[str, Preset] = {
    "weatherbench": Preset(("t850", "z500", "t2m", "t", "z", "u10", "v10", "u", "v")),
    "weatherbench2": Preset(("2m_temperature", "temperature", "geopotential", "10m_u_component_of_wind"), ("level",)),
    "cesm2": Preset(("SST", "TS", "TEMP"), ("z_t",)),
    "ersst_v5": Preset(("sst",), ("lev",)),
    "era5": Preset(("t2m", "sst", "msl", "z", "u10", "v10"), ("expver", "number")),
}


@dataclass(frozen=True)
class Climate:
    """A set of series over time.

    Attributes:
        name: of the data.
        values: (T, d), an ``xarray.DataArray`` with dimensions time and cell (may be backed by Dask).
        names: of the series.
        coords: latitude and longitude in [-180, 180), (d, 2), or None.
        month: 0 to 11 of each time step, (T,), or None where times carry no calendar.
        train_stop: time steps that statistics were fitted on.
        land: (lat, lon, bool mask) of the grid's empty cells, or None.
    """

    name: str
    values: Any
    names: tuple[str, ...]
    coords: np.ndarray | None = None
    month: np.ndarray | None = None
    train_stop: int = 0
    land: tuple[np.ndarray, np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def array(self) -> np.ndarray:
        """The values in memory, float64 (T, d)."""
        return np.asarray(self.values.values, dtype=float)

    def windows(self, length: int = 3, max_ram: int = 2**28) -> WindowDataset:
        """Windows that are read block by block; for arrays larger than memory."""
        return WindowDataset(self.values, length, max_ram, names=self.names, coords=self.coords)


# --- opening -----------------------------------------------------------------------------------------------------


def _find(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _open_one(xarray: Any, path: Path, chunks: Any, **options: Any) -> Any:
    if path.is_dir():
        return xarray.open_zarr(path, chunks=chunks, **options)
    if path.suffix.lower() in (".grib", ".grb", ".grib2", ".grb2"):
        require("cfgrib", "papershelf-cadre[data,grib]")
        options |= {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}}  # no index file beside the data
    return xarray.open_dataset(path, chunks=chunks, **options)


def _decoded(xarray: Any, path: Path, chunks: Any) -> Any:
    """Open with times decoded, or, where their origin is impossible (year 0), as plain numbers with a warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _open_one(xarray, path, chunks)
    except ValueError as error:
        if "decode" not in str(error) and "time" not in str(error):
            raise
        warnings.warn(f"{path.name}: times cannot be decoded and stay numbers", UserWarning, stacklevel=4)
        return _open_one(xarray, path, chunks, decode_times=False)


def _calendar(dataset: Any) -> str:
    time = _find(list(dataset.coords), TIMES)
    if time is None:
        return "none"
    try:
        return str(dataset[time].dt.calendar)
    except (AttributeError, TypeError):
        return "none"


def _open(paths: list[Path], chunks: Any) -> Any:
    xarray = require("xarray", EXTRA)
    for path in paths:
        if not path.exists():
            raise DataError(f"no file {path}")
    try:
        parts = [_decoded(xarray, path, chunks) for path in paths]
    except (ValueError, OSError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{paths[0]} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if len(parts) == 1:
        return parts[0]
    calendars = {path.name: _calendar(part) for path, part in zip(paths, parts, strict=True)}
    if len(set(calendars.values())) > 1:
        raise DataError(f"the files mix calendars: {', '.join(f'{k}: {v}' for k, v in calendars.items())}")
    time = _find(list(parts[0].dims), TIMES)
    if time is None:
        raise DataError(f"{paths[0].name} has no time axis; its dimensions are {', '.join(map(str, parts[0].dims))}")
    return xarray.concat(parts, dim=time, data_vars="minimal", coords="minimal", compat="override", join="override")


def _variable(dataset: Any, var: str | None, preset: Preset | None) -> Any:
    held = [str(name) for name in dataset.data_vars]
    if var is not None:
        if var not in held:
            raise DataError(f"no variable {var!r}; the file has {', '.join(held)}")
        return dataset[var]
    if preset is not None:
        found = _find(held, preset.variables)
        if found is None:
            raise DataError(f"none of {', '.join(preset.variables)} in the file, which has {', '.join(held)}")
        return dataset[found]
    fields = [name for name in held if _find([str(d) for d in dataset[name].dims], TIMES) and "bnds" not in name]
    if len(fields) != 1:
        raise DataError(f"name the variable; the file has {', '.join(held)}")
    return dataset[fields[0]]


def _renamed(field: Any, squeeze: Sequence[str], level: float | None) -> Any:
    """Dimensions as time, lat, lon (or cells of a curvilinear grid); single levels dropped."""
    dims = [str(dim) for dim in field.dims]
    time = _find(dims, TIMES)
    if time is None:
        raise DataError(f"no time axis; the variable's dimensions are {', '.join(dims)}")
    if time != "time":
        if "time" in field.coords:  # ERA5's GRIB: time is the analysis time
            field = field.drop_vars("time")
        field = field.rename({time: "time"})
    for name in ("level", "plev", "isobaricInhPa", "lev"):
        if name in field.dims and level is not None:
            field = field.sel({name: level}, method="nearest")
    if "expver" in field.dims:  # ERA5 and ERA5T: the final version where it exists
        first = field.isel(expver=0)
        field = first.combine_first(field.isel(expver=1)) if field.sizes["expver"] > 1 else first
    drop = [
        dim
        for dim in field.dims
        if dim != "time" and field.sizes[dim] == 1 and (dim in squeeze or dim not in LATITUDES + LONGITUDES)
    ]
    field = field.isel(dict.fromkeys(drop, 0), drop=True)
    lat, lon = _find(list(field.coords), LATITUDES), _find(list(field.coords), LONGITUDES)
    renames = {old: new for old, new in ((lat, "lat"), (lon, "lon")) if old is not None and old != new}
    return field.rename(renames)


def open_climate(
    path: str | Path | Sequence[str | Path],
    var: str | None = None,
    *,
    preset: str | None = None,
    level: float | None = None,
    box: tuple[float, float, float, float] | None = None,
    time: tuple[str, str] | None = None,
    coarsen: tuple[int, int] | None = None,
    season: str = "none",
    detrend: bool = False,
    train_share: float = 0.7,
    max_missing: float = 0.0,
    chunks: Any = None,
    sort: bool = False,
    places: str | Path | None = None,
) -> Climate:
    """Series of a NetCDF, HDF5, Zarr, GRIB or CSV file, or of several files along time.

    Args:
        path: a file, a Zarr folder, a pattern with ``*``, or several files.
        var: variable; may be left out where there is only one.
        preset: names of an archive: weatherbench, weatherbench2, cesm2, ersst_v5, era5, jena, causalrivers.
        level: pressure level to take, nearest.
        box: south, north, west, east in degrees; west may exceed east across the dateline.
        time: first and last date.
        coarsen: boxes in latitude and longitude, by area-weighted means.
        season: what to take away, fitted on the training part only: ``monthly`` or ``daily`` means, ``harmonics`` (two
            of the year), or ``none``.
        detrend: take a linear trend of the training part away.
        train_share: share of the time steps, from the start, that statistics may see.
        max_missing: cells with at most this share of gaps are filled linearly; others are dropped (land).
        chunks: as in xarray; ``"auto"`` or a mapping keeps the data in Dask.
        sort: sort by time and drop repeated times instead of refusing.
        places: CSV with name, lat, lon for the columns of a CSV.

    Raises:
        DataError: saying what is wrong.
    """
    if season not in SEASONS:
        raise DataError(f"season must be one of {', '.join(SEASONS)}, got {season!r}")
    if not 0 < train_share <= 1:
        raise DataError(f"train_share must lie in (0, 1], got {train_share}")
    if preset is not None and preset not in (*PRESETS, "jena", "causalrivers"):
        raise DataError(f"no preset {preset!r}; there are {', '.join(PRESETS)}, jena, causalrivers")
    paths = _paths(path)
    if preset in ("jena", "causalrivers") or paths[0].suffix.lower() == ".csv":
        field = _read_csv(paths[0], preset, places)
    else:
        known = PRESETS.get(preset or "")
        dataset = _open(paths, chunks)
        field = _renamed(_variable(dataset, var, known), known.squeeze if known else (), level)
    return prepare(
        field,
        paths[0].stem,
        box=box,
        time=time,
        coarsen=coarsen,
        season=season,
        detrend=detrend,
        train_share=train_share,
        max_missing=max_missing,
        sort=sort,
    )


def _paths(path: str | Path | Sequence[str | Path]) -> list[Path]:
    if isinstance(path, (str, Path)):
        if "*" in str(path):
            found = sorted(Path(Path(path).parent).glob(Path(path).name))
            if not found:
                raise DataError(f"no file matches {path}")
            return found
        return [Path(path)]
    if not path:
        raise DataError("expected at least one file, got none")
    return [Path(p) for p in path]


def _read_csv(path: Path, preset: str | None, places: str | Path | None) -> Any:
    """A CSV with a time column and one column a series, as a DataArray (time, cell)."""
    pandas, xarray = require("pandas", EXTRA), require("xarray", EXTRA)
    if not path.is_file():
        raise DataError(f"no file {path}")
    try:
        frame = pandas.read_csv(path)
        first = frame.columns[0]
        form = "%d.%m.%Y %H:%M:%S" if preset == "jena" else None
        index = pandas.to_datetime(frame[first], format=form)
        frame = frame.drop(columns=[first]).apply(pandas.to_numeric)
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path.name}: expected a first column of times and columns of numbers: {error}") from error
    frame = frame.mask(frame == -9999.0) if preset == "jena" else frame
    field = xarray.DataArray(
        frame.to_numpy(float),
        dims=("time", "cell"),
        coords={"time": index.to_numpy(), "cell": list(map(str, frame.columns))},
    )
    if places is not None:
        table = pandas.read_csv(places)
        missing = {"name", "lat", "lon"} - set(table.columns)
        if missing:
            raise DataError(f"{places}: expected the columns name, lat, lon, got {', '.join(table.columns)}")
        table = table.set_index(table["name"].astype(str)).reindex(field["cell"].values)
        if table["lat"].isna().any():
            raise DataError(f"{places} has no place for {table.index[table['lat'].isna()][0]!r}")
        field = field.assign_coords(
            lat=("cell", table["lat"].to_numpy(float)), lon=("cell", table["lon"].to_numpy(float))
        )
    return field


# --- preparing ---------------------------------------------------------------------------------------------------


def prepare(
    field: Any,
    name: str,
    *,
    box: tuple[float, float, float, float] | None = None,
    time: tuple[str, str] | None = None,
    coarsen: tuple[int, int] | None = None,
    season: str = "none",
    detrend: bool = False,
    train_share: float = 0.7,
    max_missing: float = 0.0,
    sort: bool = False,
) -> Climate:
    """From a DataArray with dimensions time, lat, lon (or others) to a :class:`Climate`; see :func:`open_climate`."""
    field = _checked_time(field, sort)
    if time is not None:
        field = field.sel(time=slice(*time))
        if field.sizes["time"] == 0:
            raise DataError(f"no time step between {time[0]} and {time[1]}")
    grid = "lat" in field.dims and "lon" in field.dims
    if grid:
        field = _common_longitudes(field, box)
        if coarsen is not None:
            field = area_means(field, coarsen)
    elif coarsen is not None and "lat" in field.coords and field["lat"].ndim == 2:
        field = _curvilinear_means(field, coarsen)
    elif coarsen is not None:
        raise DataError(f"cannot coarsen without lat and lon; the dimensions are {', '.join(map(str, field.dims))}")
    cells, land = _stacked(field, None if grid else box, grid)
    stop = max(1, round(train_share * cells.sizes["time"]))
    cells = _without_gaps(cells, max_missing)
    month = _month(cells)
    if season != "none" or detrend:
        cells = deseasonalised(cells, season, detrend, stop)
    coords = None
    if "lat" in cells.coords and "lon" in cells.coords:
        coords = np.stack([cells["lat"].values, (cells["lon"].values + 180.0) % 360.0 - 180.0], axis=1).astype(float)
    names = _names(cells, coords)
    return Climate(name, cells, names, coords, month, stop, land)


def _checked_time(field: Any, sort: bool) -> Any:
    if "time" not in field.coords:
        return field
    if sort:
        field = field.sortby("time")
        keep = np.flatnonzero(~field.indexes["time"].duplicated())
        field = field.isel(time=keep)
    try:
        check_times(field["time"].values)
    except ValueError as error:
        raise DataError(str(error)) from error
    return field


def _common_longitudes(field: Any, box: tuple[float, float, float, float] | None) -> Any:
    """Latitudes rising; longitudes in [-180, 180), or running on eastward from the box's west."""
    field = field.sortby("lat")
    start = -180.0
    if box is not None:
        south, north, west, east = box
        if not -90 <= south < north <= 90:
            raise DataError(f"expected south < north in [-90, 90], got {south} and {north}")
        start = west
        field = field.sel(lat=slice(south, north))
        width = (east - west) % 360.0 or 360.0
        inside = (field["lon"].values - west) % 360.0 <= width
        field = field.isel(lon=np.flatnonzero(inside))
    field = field.assign_coords(lon=(field["lon"].values.astype(float) - start) % 360.0 + start).sortby("lon")
    keep = np.flatnonzero(~field.indexes["lon"].duplicated())
    field = field.isel(lon=keep)
    if 0 in (field.sizes["lat"], field.sizes["lon"]):
        raise DataError(f"no grid cell lies in the box {box}")
    return field


def area_means(field: Any, boxes: tuple[int, int]) -> Any:
    """Means over boxes in latitude and longitude, weighted by the cosine of latitude; gaps do not count.

    Rows and columns that do not fill a box are left out at the end.
    """
    rows, columns = boxes
    sizes = field.sizes["lat"], field.sizes["lon"]
    if rows < 1 or columns < 1 or rows > sizes[0] or columns > sizes[1]:
        raise DataError(f"cannot coarsen {sizes[0]} x {sizes[1]} cells to {rows} x {columns}")
    weight = np.cos(np.radians(field["lat"]))
    steps = {"lat": sizes[0] // rows, "lon": sizes[1] // columns}
    valid = field.notnull() * weight
    total = (field.fillna(0.0) * weight).coarsen(steps, boundary="trim").sum()
    share = valid.coarsen(steps, boundary="trim").sum()
    means = (total / share).where(share > 0)
    return means.isel(lat=slice(0, rows), lon=slice(0, columns)).transpose("time", "lat", "lon", ...)


def _curvilinear_means(field: Any, boxes: tuple[int, int]) -> Any:
    """Box means along the index axes of a curvilinear grid, weighted by the cosine of latitude."""
    a, b = field["lat"].dims
    steps = {a: max(1, field.sizes[a] // boxes[0]), b: max(1, field.sizes[b] // boxes[1])}
    weight = np.cos(np.radians(field["lat"]))
    radians = np.radians(field["lon"])
    east, north = (
        np.sin(radians).coarsen(steps, boundary="trim").mean(),
        np.cos(radians).coarsen(steps, boundary="trim").mean(),
    )
    lat = field["lat"].coarsen(steps, boundary="trim").mean()
    bare = field.drop_vars(["lat", "lon"])
    weight = weight.drop_vars(["lat", "lon"], errors="ignore")
    share = (bare.notnull() * weight).coarsen(steps, boundary="trim").sum()
    means = ((bare.fillna(0.0) * weight).coarsen(steps, boundary="trim").sum() / share).where(share > 0)
    lon = np.degrees(np.arctan2(east.values, north.values))
    return means.assign_coords(lat=((a, b), lat.values), lon=((a, b), lon))


def _stacked(field: Any, box: tuple[float, float, float, float] | None, grid: bool) -> tuple[Any, Any]:
    """(time, cell) with lat and lon beside the cells, and the grid's empty cells."""
    others = [dim for dim in field.dims if dim != "time"]
    if not others:
        field = field.expand_dims(cell=[str(field.name or "x")]).transpose("time", "cell")
        others = ["cell"]
    land = None
    if grid and others == ["lat", "lon"]:
        empty = field.isnull().all("time").values
        land = (field["lat"].values, field["lon"].values, empty) if empty.any() else None
    if others == ["cell"]:
        return field.transpose("time", "cell"), None
    labels = {dim: field[dim].values if dim in field.coords else np.arange(field.sizes[dim]) for dim in others}
    mesh = np.meshgrid(*labels.values(), indexing="ij")
    extra = {}
    for axis, dim in enumerate(others):
        extra[dim] = ("cell", mesh[axis].ravel())
    for name in ("lat", "lon"):
        if name in field.coords and field[name].ndim == 2:
            spread = field[name].broadcast_like(field.isel(time=0, drop=True)).transpose(*others)
            extra[name] = ("cell", spread.values.ravel())
    ordered = field.transpose("time", *others)
    xarray = require("xarray", EXTRA)
    data = ordered.data.reshape(ordered.sizes["time"], -1)
    coords = {"time": ordered["time"]} if "time" in ordered.coords else {}
    cells = xarray.DataArray(data, dims=("time", "cell"), coords={**coords, **extra}, name=field.name)
    if box is not None and "lat" in cells.coords:
        south, north, west, east = box
        lat, lon = cells["lat"].values, cells["lon"].values
        inside = (lat >= south) & (lat <= north) & ((lon - west) % 360.0 <= ((east - west) % 360.0 or 360.0))
        if not inside.any():
            raise DataError(f"no cell lies in the box {box}")
        cells = cells.isel(cell=np.flatnonzero(inside))
    return cells, land


def _without_gaps(cells: Any, max_missing: float) -> Any:
    share = np.asarray(cells.isnull().mean("time").values)
    keep = np.flatnonzero(share <= max_missing)
    if len(keep) == 0:
        raise DataError(f"every cell has more than {max_missing:.0%} missing values (least {share.min():.0%})")
    cells = cells.isel(cell=keep)
    if share[keep].max() > 0:
        cells = cells.copy(data=interpolate_missing(np.asarray(cells.values, dtype=float)))
    return cells


def _month(cells: Any) -> np.ndarray | None:
    if "time" not in cells.coords:
        return None
    try:
        return np.asarray(cells["time"].dt.month.values).astype(int) - 1
    except (AttributeError, TypeError):
        return None


def seasonal_design(cells: Any, season: str, detrend: bool) -> np.ndarray:
    """Columns whose fit is taken away, (T, p)."""
    T = cells.sizes["time"]
    columns = [np.ones((T, 1))]
    if season != "none":
        try:
            when = cells["time"].dt
            month, day = np.asarray(when.month.values), np.asarray(when.dayofyear.values)
        except (KeyError, AttributeError, TypeError):
            if season != "monthly" or T % 12:
                raise DataError(f"season={season!r} needs times with a calendar") from None
            month, day = np.arange(T) % 12 + 1, np.arange(T)
        match season:
            case "monthly":
                columns = [np.eye(12)[month - 1]]
            case "daily":
                columns = [np.eye(367)[day]]
            case _:
                columns = [harmonics(day, DAYS_A_YEAR, 2)]
    if detrend:
        columns.append(np.linspace(-1, 1, T)[:, None])
    return np.concatenate(columns, axis=1)


def deseasonalised(cells: Any, season: str, detrend: bool, train_stop: int) -> Any:
    """Take the seasonal cycle and trend away, fitted on the first ``train_stop`` steps alone; stays lazy in Dask."""
    design = seasonal_design(cells, season, detrend)
    inverse = np.linalg.pinv(design[:train_stop])
    beta = inverse @ cells.isel(time=slice(0, train_stop)).data.astype(float)
    return cells.copy(data=cells.data.astype(float) - design @ beta)


def _names(cells: Any, coords: np.ndarray | None) -> tuple[str, ...]:
    levels = [
        name
        for name in ("plev", "level", "lev")
        if name in cells.coords and cells[name].ndim == 1 and cells[name].dims == ("cell",)
    ]
    if coords is None:
        return (
            tuple(str(v) for v in cells["cell"].values)
            if "cell" in cells.coords
            else tuple(f"x{i}" for i in range(cells.sizes["cell"]))
        )
    if "cell" in cells.coords:
        return tuple(str(v) for v in cells["cell"].values)
    shown = [f"{abs(a):.3g}{'N' if a >= 0 else 'S'} {abs(o):.3g}{'E' if o >= 0 else 'W'}" for a, o in coords]
    if levels:
        values = cells[levels[0]].values
        scale = 100.0 if values.max() > 2000 else 1.0
        shown = [f"{v / scale:g}hPa {s}" for v, s in zip(values, shown, strict=True)]
    return tuple(shown)


# --- real data out of packages -----------------------------------------------------------------------------------

_IRIS = "iris-sample-data==2.5.2"
_CMIP6 = (
    "esmvaltool-sample-data==0.0.4",
    "esmvaltool_sample_data/data/timeseries/CMIP6/CMIP/HAMMOZ-Consortium/MPI-ESM-1-2-HAM/historical/r1i1p1f1/day/ta/gn/"
    "v20190627/ta_day_MPI-ESM-1-2-HAM_historical_r1i1p1f1_gn_19900101-20091231.nc",
    "192e49c8419e3098568d4d57d36516d520a1208dd58e29272395243187682948",
)
_EOFS = (
    "eofs==2.0.0",
    "eofs/examples/example_data/sst_ndjfm_anom.nc",
    "7b85c04e272d020d72d35c3eb9c720e03cb030920a779947de810e5d1dc7252c",
)
_FERRET = {
    "coads_climatology.cdf": "b94f55034d13d63f33e2153afddc0c5e00347076c35ab3e34937aec38ce9c4c1",
    "monthly_navy_winds.cdf": "225a9e4fed7bb1a7b558afb662abbe2dc5e3d3db4100fa019cb994f10b115faa",
    "etopo120.cdf": "48a8457b6c0df6a7527714d028b360a82c299444a6c02985eb95a330f66ccc7b",
}
_COLORADO_SHA = "5bcdd004aa8db0430fac663e992af2e33dbf63e72c3f206f999866e3f4c346e5"


def _iris(member: str, sha256: str) -> Path:
    return registry_asset(_IRIS, f"iris_sample_data/sample_data/{member}", sha256)


def ferret_file(name: str) -> Path:
    """A file of Debian's ``ferret-datasets``, installed or fetched.

    Raises:
        InputError: saying how to install it.
    """
    installed = Path("/usr/share/ferret-vis/data") / name
    if installed.is_file():
        return installed
    member = f"usr/share/ferret-vis/data/{name}"
    try:
        return debian_assets("ferret-datasets", {member: _FERRET[name]})[member]
    except InputError as error:
        raise InputError(
            f"{name} is in the Debian package ferret-datasets (apt-get install ferret-datasets): {error}"
        ) from error


def cmip6(train_share: float = 0.7) -> Climate:
    """Daily air temperature of MPI-ESM-1-2-HAM, 1990-2009, two levels at four places: 8 series, without the season."""
    return replace(
        open_climate(registry_asset(*_CMIP6), "ta", season="harmonics", train_share=train_share), name="cmip6"
    )


def ostia(boxes: tuple[int, int] = (2, 8), box: tuple[float, float, float, float] = (-5, 5, 120, 280)) -> Climate:
    """Monthly sea surface temperature of the tropical Pacific 2006-2010 (OSTIA), without the monthly means."""
    path = _iris("ostia_monthly.nc", "e40d33fef22eabae985dae0fcee7643e127394195cef55a2e40e1f5416d57f98")
    found = open_climate(path, "surface_temperature", box=box, coarsen=boxes, season="monthly", train_share=1.0)
    return replace(found, name="ostia")


def north_america(boxes: tuple[int, int] = (3, 4)) -> Climate:
    """Annual air temperature of North America 1860-2099 (scenario A1B), without a linear trend."""
    path = _iris("A1B_north_america.nc", "5f728a78bfc2d2503e26ab6faab82c23313eefd56bfae244ccc04b9d41b71816")
    return replace(open_climate(path, coarsen=boxes, detrend=True), name="north-america")


def darwin() -> Climate:
    """Monthly sea level pressure at Darwin 1866-2013, one series, without the monthly means."""
    path = _iris("SOI_Darwin.nc", "96376abb38655223749ea333230cf0c1a057a4716c2e343eaa3d5498a1b744b1")
    return replace(open_climate(path, season="monthly", max_missing=0.05), name="darwin")


def pacific_winter(boxes: tuple[int, int] = (3, 5)) -> Climate:
    """Winter anomalies of Pacific sea surface temperature 1962/63 to 2011/12."""
    return replace(open_climate(registry_asset(*_EOFS), "sst", coarsen=boxes), name="pacific-winter")


def elnino() -> Climate:
    """Monthly sea surface temperature of Nino 1+2, 1950-2010, one series, without the monthly means (statsmodels)."""
    sets, xarray, pandas = require("statsmodels.datasets", EXTRA), require("xarray", EXTRA), require("pandas", EXTRA)
    table = sets.elnino.load_pandas().data
    values = table.iloc[:, 1:].to_numpy(float).ravel()
    time = pandas.date_range(f"{int(table.iloc[0, 0])}-01-01", periods=len(values), freq="MS")
    field = xarray.DataArray(values[:, None], dims=("time", "cell"), coords={"time": time, "cell": ["nino12"]})
    return prepare(field, "elnino", season="monthly")


def colorado(max_missing: float = 0.05, variable: str = "tmax", start: int = 1950) -> Climate:
    """Monthly station series of Colorado (fields, 1895-1997), without the monthly means.

    Stations with more gaps are left out; a gap gets its month's mean plus an AR(1) bridge from its neighbours in time.

    Args:
        max_missing: share of gaps allowed from ``start`` on.
        variable: tmax, tmin or ppt.
        start: first year.
    """
    rdata, xarray, pandas = require("rdata", EXTRA), require("xarray", EXTRA), require("pandas", EXTRA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = rdata.read_rda(_colorado_file())
    if f"CO.{variable}" not in table:
        raise DataError(f"variable must be tmax, tmin or ppt, got {variable!r}")
    years = np.asarray(table["CO.years"]).astype(int)
    values = np.asarray(table[f"CO.{variable}"], dtype=float)[years >= start]
    values = values.reshape(-1, values.shape[2])
    keep = np.isnan(values).mean(0) <= max_missing
    if keep.sum() < 2:
        raise DataError(f"{int(keep.sum())} stations have at most {max_missing:.0%} gaps since {start}")
    place = table["CO.loc"].to_numpy(float)[keep]
    filled = fill_months(values[:, keep])
    time = pandas.date_range(f"{max(start, years[0])}-01-01", periods=len(filled), freq="MS")
    names = [str(n).strip() for n in np.asarray(table["CO.id"])[keep]]
    field = xarray.DataArray(
        filled,
        dims=("time", "cell"),
        coords={"time": time, "cell": names, "lat": ("cell", place[:, 1]), "lon": ("cell", place[:, 0])},
    )
    return prepare(field, "colorado", season="monthly")


def _colorado_file() -> Path:
    installed = Path("/usr/lib/R/site-library/fields/data/COmonthlyMet.rda")
    if installed.is_file():
        return installed
    member = "usr/lib/R/site-library/fields/data/COmonthlyMet.rda"
    try:
        return debian_assets("r-cran-fields", {member: _COLORADO_SHA})[member]
    except InputError as error:
        raise InputError(
            f"the Colorado stations are in the Debian package r-cran-fields (apt-get install r-cran-fields): {error}"
        ) from error


def fill_months(values: np.ndarray) -> np.ndarray:
    """Fill gaps of monthly series: the month's mean plus the last anomaly, fading at the series' lag-1 correlation."""
    filled = values.copy()
    month = np.arange(len(values)) % 12
    for j in range(values.shape[1]):
        means = np.array([np.nanmean(values[month == m, j]) for m in range(12)])
        anomaly = values[:, j] - means[month]
        both = np.isfinite(anomaly[1:]) & np.isfinite(anomaly[:-1])
        rho = float(np.clip(np.corrcoef(anomaly[1:][both], anomaly[:-1][both])[0, 1], 0, 0.95))
        carried = 0.0
        for t in range(len(values)):
            carried = anomaly[t] if np.isfinite(anomaly[t]) else rho * carried
            if not np.isfinite(filled[t, j]):
                filled[t, j] = means[month[t]] + carried
    return filled


def coads_winds(coords: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Annual mean wind of the COADS climatology at the nearest ocean cell of each place, m/s: eastward, northward."""
    xarray = require("xarray", EXTRA)
    with xarray.open_dataset(ferret_file("coads_climatology.cdf"), decode_times=False) as dataset:
        u, v = (dataset[name].mean("TIME").values for name in ("UWND", "VWND"))
        lat, lon = dataset["COADSY"].values, dataset["COADSX"].values
    return _nearest(u, v, lat, lon, coords)


def fnoc_winds(coords: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean FNOC wind 1982-1992 at the nearest cell of each place, m/s: eastward, northward."""
    xarray = require("xarray", EXTRA)
    with xarray.open_dataset(ferret_file("monthly_navy_winds.cdf")) as dataset:
        u, v = (dataset[name].mean("TIME").values for name in ("UWND", "VWND"))
        lat, lon = dataset["FNOCY"].values, dataset["FNOCX"].values
    return _nearest(u, v, lat, lon, coords)


def _nearest(
    u: np.ndarray, v: np.ndarray, lat: np.ndarray, lon: np.ndarray, coords: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(np.isfinite(u) & np.isfinite(v))
    found = []
    for place_lat, place_lon in coords:
        east = (lon[columns] - place_lon + 180) % 360 - 180
        gap = np.square(lat[rows] - place_lat) + np.square(east * np.cos(np.radians(place_lat)))
        found.append(int(np.argmin(gap)))
    return u[rows[found], columns[found]], v[rows[found], columns[found]]


def coastline() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Land of the world on a 2 degree grid, (lat, lon, bool mask), from etopo of ``ferret-datasets``."""
    xarray = require("xarray", EXTRA)
    with xarray.open_dataset(ferret_file("etopo120.cdf"), decode_times=False) as dataset:
        field = next(iter(dataset.data_vars.values()))
        lat, lon = (field[dim].values for dim in field.dims[-2:])
        return lat, lon, field.values > 0


NAMED: Mapping[str, Callable[[], Climate]] = {
    "cmip6": cmip6,
    "ostia": ostia,
    "colorado": colorado,
    "north-america": north_america,
    "pacific-winter": pacific_winter,
    "darwin": darwin,
    "elnino": elnino,
}


def load(source: str, **options: Any) -> Climate:
    """Data by name (see ``NAMED``), or from a file by :func:`open_climate`."""
    if source in NAMED:
        return NAMED[source](**{key: value for key, value in options.items() if value is not None})
    if not Path(source).exists() and "*" not in source:
        raise DataError(f"no data or file {source!r}; named data: {', '.join(NAMED)}")
    return open_climate(source, **options)
