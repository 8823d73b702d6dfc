"""Folders that 1.15 has written load here, and folders that are written here load there, with everything in them.

What is compared is what training computes afterwards (losses, weights, random numbers, rates), which has to be the
same to the last bit in the process that saved and in the one that loaded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

CROSSING = [("1.15", "here"), ("here", "1.15")]

RUNS = {
    "one process": {},
    "with torch.save": {"safe": False},
    "bf16": {"precision": "bf16"},
    "a scaler": {"scaler": True},
    "automatic naming": {"automatic": True},
    "tied weights, groups of parameters": {"tied": True, "groups": True},
    "two processes": {"processes": 2},
    "two processes, automatic naming, with torch.save": {"processes": 2, "automatic": True, "safe": False},
}


@pytest.mark.parametrize("run_settings", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize(("writer", "reader"), CROSSING, ids=["from 1.15", "to 1.15"])
def test_training_goes_on_in_the_other_release(run, tmp_path, writer, reader, run_settings):
    saved = run(writer, "save", tmp_path, **run_settings)
    loaded = run(reader, "load", tmp_path, **run_settings)
    assert loaded == saved


def test_stateful_loaders_of_1_15_go_on_where_they_do_there(run, peer_has, tmp_path):
    pytest.importorskip("torchdata", reason="stateful loaders are torchdata's")
    if not peer_has("torchdata"):
        pytest.skip("stateful loaders are torchdata's, which is not installed beside 1.15.0")
    run("1.15", "save", tmp_path, stateful=True)
    (there,), (here,) = (run(release, "load", tmp_path, stateful=True) for release in ("1.15", "here"))
    assert len(here["seen"]) == 13
    assert here["seen"] == there["seen"]


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "torch.save"])
@pytest.mark.parametrize("shards", ["10GB", "3KB"], ids=["one file", "shards"])
@pytest.mark.parametrize(("writer", "reader"), CROSSING, ids=["from 1.15", "to 1.15"])
def test_models_are_read_by_the_other_release(run, tmp_path, writer, reader, shards, safe):
    (saved,) = run(writer, "save_model", tmp_path, shards=shards, safe=safe)
    suffix = "safetensors" if safe else "bin"
    assert len(list(Path(tmp_path).glob(f"*.{suffix}"))) == (1 if shards == "10GB" else 3)
    (loaded,) = run(reader, "load_model", tmp_path)
    assert loaded == saved


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "torch.save"])
def test_both_releases_write_files_of_the_same_names(run, tmp_path, safe):
    names = {}
    for release in ("1.15", "here"):
        run(release, "save", tmp_path / release, safe=safe, scaler=True)
        names[release] = {path.name for path in (tmp_path / release / "saved").iterdir()}
    assert names["here"] - names["1.15"] == {"manifest.json", "data_loaders.bin"}
    assert names["1.15"] <= names["here"]
