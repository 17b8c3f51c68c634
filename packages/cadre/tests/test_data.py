"""Loaders on files written here, in the layouts of the archives; anomalies that see the training part alone."""

import eccodes
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from cadre.data import (
    NAMED,
    DataError,
    area_means,
    coads_winds,
    coastline,
    deseasonalised,
    fill_months,
    load,
    open_climate,
    prepare,
)

RNG = np.random.default_rng(0)


def field(lat=(-10.0, 0.0, 10.0), lon=(0.0, 120.0, 240.0), periods=48, freq="MS", values=None, **names):
    lat, lon = np.asarray(lat), np.asarray(lon)
    data = RNG.normal(size=(periods, lat.size, lon.size)) if values is None else values
    times = pd.date_range("2000-01-01", periods=periods, freq=freq)
    return xr.DataArray(data, dims=("time", "lat", "lon"), coords={"time": times, "lat": lat, "lon": lon}, name="t")


def test_longitudes_come_to_one_range_and_latitudes_rise(tmp_path):
    a = field()
    b = a.assign_coords(lon=[0.0, 120.0, -120.0]).isel(lat=slice(None, None, -1))
    a.to_netcdf(tmp_path / "a.nc")
    b.to_netcdf(tmp_path / "b.nc")
    first, second = open_climate(tmp_path / "a.nc"), open_climate(tmp_path / "b.nc")
    np.testing.assert_allclose(first.array(), second.array())
    np.testing.assert_allclose(first.coords, second.coords)
    assert first.coords[0].tolist() == [-10.0, -120.0]
    assert first.names[0] == "10S 120W"


def test_boxes_cross_the_dateline():
    found = prepare(field(lon=np.arange(0, 360, 30.0)), "x", box=(-10, 0, 150, -150))
    assert sorted(set(found.coords[:, 1])) == [-180.0, -150.0, 150.0]
    assert sorted(set(found.coords[:, 0])) == [-10.0, 0.0]
    with pytest.raises(DataError, match="south < north"):
        prepare(field(), "x", box=(10, -10, 0, 90))
    with pytest.raises(DataError, match="no grid cell"):
        prepare(field(), "x", box=(20, 30, 0, 90))


def test_area_means_weigh_by_latitude_and_skip_land():
    values = np.ones((4, 2, 2))
    values[:, 1] = 3.0
    a = field((0.0, 60.0), (0.0, 10.0), 4, values=values)
    np.testing.assert_allclose(area_means(a, (1, 1)).values.ravel(), (1 * 1 + 3 * 0.5) / 1.5)
    a[:, 0, 0] = np.nan
    np.testing.assert_allclose(area_means(a, (1, 1)).values.ravel(), (1 * 1 + 2 * 3 * 0.5) / 2)
    with pytest.raises(DataError, match="cannot coarsen 2 x 2 cells to 3 x 1"):
        area_means(a, (3, 1))


def test_land_is_dropped_and_kept_for_the_map():
    a = field()
    a[:, 1, 1] = np.nan
    a[3, 0, 0] = np.nan
    found = prepare(a, "x")
    assert len(found.names) == 7
    assert found.land[2].sum() == 1
    some = prepare(a, "x", max_missing=0.1)
    assert len(some.names) == 8
    assert np.isfinite(some.array()).all()
    with pytest.raises(DataError, match="every cell has more than 0% missing"):
        prepare(a * np.nan, "x")


@pytest.mark.parametrize("season", ["monthly", "harmonics"])
def test_anomalies_see_the_training_part_alone(season):
    a = field(periods=120)
    b = a.copy(deep=True)
    b[-30:] += 100.0
    options = {"season": season, "detrend": True, "train_share": 0.7}
    first, second = prepare(a, "x", **options), prepare(b, "x", **options)
    np.testing.assert_allclose(first.array()[:84], second.array()[:84])
    np.testing.assert_allclose(second.array()[-30:] - first.array()[-30:], 100.0)


def test_a_pure_season_leaves_nothing():
    t = np.arange(120)
    values = np.broadcast_to(np.cos(2 * np.pi * t / 12)[:, None, None] + 0.01 * t[:, None, None], (120, 3, 3))
    found = prepare(field(periods=120, values=values.copy()), "x", season="monthly", detrend=True, train_share=1.0)
    assert np.abs(found.array()).max() < 1e-10


def test_a_360_day_calendar_opens(tmp_path):
    a = field()
    times = xr.date_range("2000-01-01", periods=48, freq="MS", calendar="360_day", use_cftime=True)
    a.assign_coords(time=times).to_netcdf(tmp_path / "a.nc")
    found = open_climate(tmp_path / "a.nc", season="harmonics")
    assert found.month[:3].tolist() == [0, 1, 2]
    a.to_netcdf(tmp_path / "b.nc")
    with pytest.raises(DataError, match=r"mix calendars: a\.nc: 360_day, b\.nc: (proleptic_gregorian|standard)"):
        open_climate([tmp_path / "a.nc", tmp_path / "b.nc"])


def test_packed_integers_are_unpacked(tmp_path):
    a = field()
    encoding = {"t": {"dtype": "int16", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -32768}}
    a.to_netcdf(tmp_path / "a.nc", encoding=encoding)
    np.testing.assert_allclose(open_climate(tmp_path / "a.nc").array(), prepare(a, "x").array(), atol=6e-4)


def test_zarr_hdf5_and_several_files(tmp_path):
    a = field()
    whole = prepare(a, "x", season="monthly").array()
    a.chunk(time=12).to_dataset().to_zarr(tmp_path / "a.zarr", consolidated=False)
    a.to_netcdf(tmp_path / "a.h5", engine="netcdf4")
    for i in range(4):
        a.isel(time=slice(12 * i, 12 * i + 12)).to_netcdf(tmp_path / f"part{i}.nc")
    for source in (tmp_path / "a.zarr", tmp_path / "a.h5", str(tmp_path / "part*.nc")):
        np.testing.assert_allclose(open_climate(source, season="monthly").array(), whole, atol=1e-12)


def write_grib(path, values, lat, lon):
    """Daily fields of 2 m temperature as GRIB 2 messages."""
    ends = {
        "latitudeOfFirstGridPointInDegrees": lat[0],
        "latitudeOfLastGridPointInDegrees": lat[-1],
        "longitudeOfFirstGridPointInDegrees": lon[0],
        "longitudeOfLastGridPointInDegrees": lon[-1],
        "iDirectionIncrementInDegrees": lon[1] - lon[0],
        "jDirectionIncrementInDegrees": abs(lat[1] - lat[0]),
    }
    with path.open("wb") as file:
        for day, one in enumerate(values):
            message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            words = {"Ni": len(lon), "Nj": len(lat), **ends, "shortName": "2t", "dataDate": 20200101 + day}
            for key, value in {**words, "bitsPerValue": 24}.items():
                eccodes.codes_set(message, key, value)
            eccodes.codes_set_values(message, one.ravel())
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)


def test_grib_is_read_without_leaving_an_index(tmp_path):
    lat, lon = [10.0, 0.0, -10.0], [170.0, 180.0, 190.0, 200.0]
    values = 280 + RNG.normal(size=(12, 3, 4))
    write_grib(tmp_path / "a.grib", values, lat, lon)
    found = open_climate(tmp_path / "a.grib", preset="era5")
    assert found.coords[0].tolist() == [-10.0, -180.0]
    np.testing.assert_allclose(found.array().reshape(12, 3, 4), values[:, ::-1][..., [1, 2, 3, 0]], atol=1e-5)
    lazy = open_climate(tmp_path / "a.grib", box=(-15, 15, 165, 205), chunks={"time": 4})
    assert hasattr(lazy.values.data, "dask")
    np.testing.assert_allclose(lazy.array().reshape(12, 3, 4), values[:, ::-1], atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["a.grib"]
    (tmp_path / "b.grib").write_bytes(b"GRIB nothing")
    with pytest.raises(DataError, match="cannot be read"):
        open_climate(tmp_path / "b.grib")


def test_dask_stays_lazy_and_feeds_windows(tmp_path):
    a = field(periods=200, freq="D")
    a.to_netcdf(tmp_path / "a.nc")
    found = open_climate(tmp_path / "a.nc", season="harmonics", chunks={"time": 50})
    assert hasattr(found.values.data, "dask")
    data = found.windows(3)
    np.testing.assert_allclose(data.mean, found.array()[: data.train_stop].mean(0), atol=1e-10)
    assert next(data.epoch(np.random.default_rng(0), 8)).shape == (8, 3, 9)


def test_archives_by_their_names(tmp_path):
    level = field().expand_dims(level=[850, 500]).transpose("time", "level", "lat", "lon").rename("t")
    level.to_netcdf(tmp_path / "weatherbench.nc")
    assert open_climate(tmp_path / "weatherbench.nc", preset="weatherbench", level=850).array().shape == (48, 9)
    both = open_climate(tmp_path / "weatherbench.nc", preset="weatherbench")
    assert both.names[0].startswith("850hPa")
    assert len(both.names) == 18
    era5 = field().rename(time="valid_time", lat="latitude", lon="longitude").rename("t2m")
    era5.expand_dims(number=[0]).to_netcdf(tmp_path / "era5.nc")
    assert open_climate(tmp_path / "era5.nc", preset="era5").array().shape == (48, 9)
    ersst = field().rename("sst").expand_dims(lev=[0.0])
    ersst.to_netcdf(tmp_path / "ersst.nc")
    assert open_climate(tmp_path / "ersst.nc", preset="ersst_v5").array().shape == (48, 9)
    with pytest.raises(DataError, match="none of SST, TS, TEMP"):
        open_climate(tmp_path / "ersst.nc", preset="cesm2")


def test_curvilinear_grids(tmp_path):
    lat, lon = np.meshgrid(np.linspace(-20, 20, 4), np.linspace(170, 200, 6), indexing="ij")
    a = xr.DataArray(
        RNG.normal(size=(24, 4, 6)),
        dims=("time", "nlat", "nlon"),
        coords={
            "time": xr.date_range("2000-01-01", periods=24, freq="MS", calendar="noleap", use_cftime=True),
            "TLAT": (("nlat", "nlon"), lat),
            "TLONG": (("nlat", "nlon"), lon),
        },
        name="SST",
    )
    a.to_netcdf(tmp_path / "cesm.nc")
    found = open_climate(tmp_path / "cesm.nc", preset="cesm2", coarsen=(2, 3), season="monthly", train_share=1.0)
    assert found.array().shape == (24, 6)
    np.testing.assert_allclose(found.coords[0], [-20 + 20 / 3, 173], atol=1e-6)
    box = open_climate(tmp_path / "cesm.nc", preset="cesm2", box=(-10, 10, 175, -175))
    assert (np.abs(box.coords[:, 0]) <= 10).all()
    assert (np.abs(np.abs(box.coords[:, 1]) - 180) <= 5).all()


def test_tables(tmp_path):
    times = pd.date_range("2000-01-01", periods=30)
    frame = pd.DataFrame(RNG.normal(size=(30, 2)), columns=["a", "b"])
    frame.insert(0, "time", times)
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "places.csv").write_text("name,lat,lon\nb,1,2\na,3,190\n")
    found = open_climate(tmp_path / "t.csv", places=tmp_path / "places.csv")
    assert found.names == ("a", "b")
    np.testing.assert_allclose(found.coords, [[3, -170], [1, 2]])
    (tmp_path / "places.csv").write_text("name,lat,lon\nb,1,2\n")
    with pytest.raises(DataError, match="no place for 'a'"):
        open_climate(tmp_path / "t.csv", places=tmp_path / "places.csv")
    jena = ["Date Time,p,T"] + [f"01.01.2009 0{h}:{m}0:00,{h}.5,{m}" for h in range(3) for m in range(6)]
    (tmp_path / "jena.csv").write_text("\n".join(jena))
    assert open_climate(tmp_path / "jena.csv", preset="jena").array().shape == (18, 2)
    (tmp_path / "words.csv").write_text("time,a\n2000-01-01,x\n")
    with pytest.raises(DataError, match="columns of numbers"):
        open_climate(tmp_path / "words.csv")


def test_bad_files_are_refused(tmp_path):
    a = field()
    xr.Dataset({"u": a, "v": a}).to_netcdf(tmp_path / "two.nc")
    with pytest.raises(DataError, match="name the variable; the file has u, v"):
        open_climate(tmp_path / "two.nc")
    with pytest.raises(DataError, match="no variable 'x'; the file has u, v"):
        open_climate(tmp_path / "two.nc", "x")
    a.isel(time=0, drop=True).to_netcdf(tmp_path / "still.nc")
    with pytest.raises(DataError, match="no time axis; the variable's dimensions are lat, lon"):
        open_climate(tmp_path / "still.nc", "t")
    (tmp_path / "broken.nc").write_bytes(b"CDF\x01 not really")
    with pytest.raises(DataError, match="cannot be read"):
        open_climate(tmp_path / "broken.nc")
    with pytest.raises(DataError, match="no file"):
        open_climate(tmp_path / "nothing.nc")
    with pytest.raises(DataError, match="no data or file 'nothing'; named data: cmip6"):
        load("nothing")
    with pytest.raises(DataError, match="season must be"):
        open_climate(tmp_path / "two.nc", "u", season="weekly")


def test_repeated_and_unsorted_times(tmp_path):
    a = field()
    mixed = xr.concat([a.isel(time=slice(10, None)), a.isel(time=slice(0, 12))], "time")
    mixed.to_netcdf(tmp_path / "mixed.nc")
    with pytest.raises(DataError, match="is unsorted; sort and drop duplicates"):
        open_climate(tmp_path / "mixed.nc")
    np.testing.assert_allclose(open_climate(tmp_path / "mixed.nc", sort=True).array(), prepare(a, "x").array())
    a.isel(time=[0, 1, 2, 5, 6]).to_netcdf(tmp_path / "gap.nc")
    with pytest.raises(DataError, match="irregular: 1 differ"):
        open_climate(tmp_path / "gap.nc")


def test_gaps_of_months_are_filled_by_season_and_memory():
    t = np.arange(240)
    season = 10 * np.cos(2 * np.pi * t / 12)
    x = (season + np.random.default_rng(0).normal(0, 0.1, 240))[:, None]
    gaps = x.copy()
    gaps[100:103] = np.nan
    np.testing.assert_allclose(fill_months(gaps)[100:103, 0], season[100:103], atol=0.5)
    np.testing.assert_array_equal(fill_months(gaps)[:100], x[:100])


def test_deseasonalising_commutes_with_dask():
    a = prepare(field(periods=60), "x").values
    plain = deseasonalised(a, "monthly", True, 40).values
    np.testing.assert_allclose(deseasonalised(a.chunk(time=10), "monthly", True, 40).values, plain)


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cmip6", (7305, 8)),
        ("ostia", (54, 16)),
        ("north-america", (240, 12)),
        ("pacific-winter", (50, 15)),
        ("darwin", (1776, 1)),
    ],
)
def test_real_data_out_of_registry_packages(name, shape):
    found = NAMED[name]()
    assert found.array().shape == shape
    assert np.isfinite(found.array()).all()


@pytest.mark.network
def test_debian_data_where_there_is_debian():
    stations = NAMED["colorado"]()
    u, _ = coads_winds(np.array([[0.0, -150.0], [-50.0, 80.0]]))
    assert stations.array().shape[0] == 576
    assert u[0] < 0 < u[1]  # trade winds blow westward, the roaring forties eastward
    lat, lon, land = coastline()
    assert land[np.argmin(np.abs(lat - 40)), np.argmin(np.abs(lon - 260))]
