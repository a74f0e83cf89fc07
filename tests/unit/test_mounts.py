"""Mounts before anything is rented: proven to be there, measured, refused where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from clouds.seaweedfs import SeaweedFS

from broker import mounts, workdir
from broker.access import own
from broker.config import Config
from broker.errors import TaskError
from broker.home import Home, JobKeys, folder_url
from broker.mounts import Mount, brought, measure, pack


def config(folder: Path, **home: str) -> Config:
    return Config(state=folder / "state", file=folder / "config.toml", home_config=home)


def tree(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_bytes(b"a" * 1000)
    (folder / ".gitignore").write_text("sub/\n")
    return folder


def test_a_local_path_is_measured_whole(tmp_path: Path) -> None:
    found = measure(
        (Mount("~/d", str(tree(tmp_path / "d"))), Mount("~/c")), config(tmp_path), folder_url(tmp_path / "home"), 1
    )
    assert [(each.bytes, each.files) for each in found] == [(1005, 2), (0, 0)]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/no/where", "no such file or folder"), ("file:///no/where", "no such folder"),
        ("s3://bucket/x", "cannot be reached: the broker's only key is that of its home, file://"),
        ("gs://bucket", "cannot be reached"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_before_anything_is_rented(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(TaskError, match=words) as caught:
        measure((Mount("~/d", source),), config(tmp_path), folder_url(tmp_path / "home"), 100)
    assert caught.value.field == "file_mounts.~/d"


def test_what_does_not_fit_the_disk_is_refused(tmp_path: Path) -> None:
    mount = Mount("~/d", str(tree(tmp_path / "d")))
    with pytest.raises(TaskError, match="do not fit a disk of 1e-07 GiB"):
        measure((mount,), config(tmp_path), folder_url(tmp_path / "home"), 1e-7)


def test_a_bucket_is_read_with_the_homes_key(tmp_path: Path, seaweedfs: SeaweedFS) -> None:
    settings = config(tmp_path, **seaweedfs.mints("assume-role"))
    home = Home(own(settings, seaweedfs.new_home("team/home")))
    bucket = home.url.split("/")[2]
    Home(own(settings, f"s3://{bucket}/data/set")).put("sub/a", b"a" * 1000)
    mount = Mount("~/d", f"s3://{bucket}/data/set", "MOUNT")
    (found,) = measure((mount,), settings, home.url, 20)
    assert (found.bytes, found.files) == (1000, 1)
    (told,) = pack((mount,), settings, home, JobKeys("j").artefact)
    archive = tmp_path / "archive"
    archive.write_bytes(home.get(told["key"]))
    workdir.unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "a").read_bytes() == b"a" * 1000
    with pytest.raises(TaskError, match="is empty, or not there"):
        measure((Mount("~/d", f"s3://{bucket}/nothing"),), settings, home.url, 20)


def test_a_link_that_leads_out_is_refused_by_name(tmp_path: Path) -> None:
    (tree(tmp_path / "d") / "out").symlink_to("/etc/hostname")
    with pytest.raises(TaskError, match="d/out is a link that leads out of the folder") as caught:
        measure((Mount("~/d", str(tmp_path / "d")),), config(tmp_path), folder_url(tmp_path / "home"), 1)
    assert caught.value.field == "file_mounts"


def test_the_same_content_gives_the_same_archive(tmp_path: Path) -> None:
    home = Home(own(config(tmp_path), folder_url(tmp_path / "home")))
    both = [
        pack((Mount("~/d", str(tree(tmp_path / name))),), config(tmp_path), home, JobKeys("j").artefact)[0]["sha256"]
        for name in ("one", "two")
    ]
    assert both[0] == both[1]


def test_a_target_must_be_a_place_of_the_jobs_own() -> None:
    assert [problem.message for problem in Mount("~/a", "/x").problems()] == []
    for target in ("a", "~", "/", "~/../b", "/a/../b", "/var/lib/spotbroker/work"):
        assert list(Mount(target, "/x").problems()), target
    assert list(Mount("/a", "s3:///x").problems())
    assert Mount("/a").covers("/a/b")
    assert not Mount("/a").covers("/ab")
    assert mounts.LARGEST > 0


def test_a_rehearsal_gets_a_buckets_content_as_a_folder_of_this_computer(tmp_path: Path, seaweedfs: SeaweedFS) -> None:
    settings = config(tmp_path, **seaweedfs.settings())
    bucket = seaweedfs.new_home("set")
    Home(own(settings, bucket)).put("sub/a", b"a" * 1000)
    folder = tree(tmp_path / "d")
    # The home is a folder, as where only rehearsals are made: [home_config] then holds the bucket's key.
    asked = (Mount("~/s3", bucket, "MOUNT"), Mount("~/file", folder.as_uri()), Mount("~/plain", str(folder)))
    found = brought(asked, settings, folder_url(tmp_path / "home"), tmp_path / "mounts")
    assert [mount.target for mount in found] == ["~/s3", "~/file", "~/plain"]
    assert [mount.is_url for mount in found] == [False] * 3
    assert (Path(found[0].source) / "sub" / "a").read_bytes() == b"a" * 1000
    assert (Path(found[1].source) / "sub" / "a").read_bytes() == b"a" * 1000
    assert found[2] == asked[2]
