"""The manifest: whatever happens to it or to the files it lists is found."""

from __future__ import annotations

import json

import pytest

from accelerate.checkpointing.layout import MANIFEST
from accelerate.checkpointing.manifest import Manifest, problems_of_files, read_manifest
from accelerate.checkpointing.reading import fact_of


@pytest.fixture
def folder(tmp_path):
    """A folder with two files and a manifest."""
    (tmp_path / "a.bin").write_bytes(b"x" * 1000)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.bin").write_bytes(b"y" * 10)
    files = {name: fact_of(tmp_path / name) for name in ("a.bin", "sub/b.bin")}
    Manifest(2, files, {"models": 1}, {"step": 3}, [[["w", None]]], {"torch": "2"}, "now").write(tmp_path)
    return tmp_path


def test_it_comes_back_as_it_was_written(folder):
    manifest = read_manifest(folder)
    assert manifest.world_size == 2
    assert manifest.position == {"step": 3}
    assert manifest.parameters == [[["w", None]]]
    assert manifest.files["a.bin"] == fact_of(folder / "a.bin")
    assert problems_of_files(folder, manifest.files, manifest.files, thorough=True) == []


def test_a_folder_of_1_15_has_none(tmp_path):
    assert read_manifest(tmp_path) is None


def test_every_changed_byte_of_it_is_found(folder):
    whole = (folder / MANIFEST).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        (folder / MANIFEST).write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            read_manifest(folder)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"manifest": 1, "checksum": "x"}', "\xff"])
def test_other_contents_are_no_manifest(folder, text):
    (folder / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="damaged"):
        read_manifest(folder)


def rewritten(folder, **changes):
    """Write the manifest again with other contents and a checksum that fits them."""
    body = json.loads((folder / MANIFEST).read_text())["manifest"]
    (folder / MANIFEST).unlink()
    manifest = Manifest(**{**body, "files": {}})
    Manifest.write(Manifest(**{**manifest.__dict__, **changes}), folder)


def test_a_later_format_is_refused_in_words(folder):
    rewritten(folder, format=99)
    with pytest.raises(ValueError, match="Given: .*format 99"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_names_that_lead_out_of_the_folder_are_refused(folder, name):
    rewritten(folder, files={name: fact_of(folder / "a.bin")})
    with pytest.raises(ValueError, match="leads out of the folder"):
        read_manifest(folder)


DAMAGES = {
    "removed": (lambda path: path.unlink(), "a.bin is missing"),
    "emptied": (lambda path: path.write_bytes(b""), "a.bin has 0 bytes instead of 1000"),
    "cut short": (lambda path: path.write_bytes(b"x" * 999), "a.bin has 999 bytes instead of 1000"),
    "one byte changed": (lambda path: path.write_bytes(b"x" * 500 + b"y" + b"x" * 499), "a.bin is damaged: its"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_to_a_file_is_named(folder, damage, said):
    manifest = read_manifest(folder)
    damage(folder / "a.bin")
    (problem,) = problems_of_files(folder, manifest.files, manifest.files, thorough=True)
    assert problem.startswith(said)


def test_sizes_alone_do_not_show_a_changed_byte(folder):
    manifest = read_manifest(folder)
    (folder / "a.bin").write_bytes(b"z" * 1000)
    assert problems_of_files(folder, manifest.files, ["a.bin"], thorough=False) == []
