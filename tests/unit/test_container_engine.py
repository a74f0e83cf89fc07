"""What docker and podman say of an image, and whose fault it is. The words are theirs: docker 28, podman 4 and 5."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.guest.container import NO_GPU, NO_SHELL, Wanted, command
from broker.guest.engine import Engine, HostUnfit, ImageRefused, find
from broker.guest.places import Places

DAEMON = "Error response from daemon: "
TASK = [
    (f"{DAEMON}manifest for pytorch/pytorch:nope not found: manifest unknown: manifest unknown", "there is no image"),
    ("Error: initializing source docker://a/b:1: reading manifest 1 in docker.io/a/b: manifest unknown", "no image"),
    (
        f"{DAEMON}pull access denied for a/b, repository does not exist or may require 'docker login'",
        "private, or there",
    ),
    ("Error: reading manifest 1 in ghcr.io/a/b: unauthorized: authentication required", "private, or there is none"),
    ("Error: requested access to the resource is denied", "make it public"),
    ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "raise resources.disk_size"),
    ("docker: invalid reference format: repository name must be lowercase", "check its name"),
]
MACHINE = [
    f"{DAEMON}no matching manifest for linux/arm64/v8 in the manifest list entries",
    'Error: choosing an image from manifest list: no image found in manifest list for architecture "arm64"',
    "exec /bin/sh: exec format error",
]
NOBODY = [
    f"{DAEMON}toomanyrequests: You have reached your unauthenticated pull rate limit. https://www.docker.com/increase",
    f'{DAEMON}Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting for connection',
    f"{DAEMON}received unexpected HTTP status: 503 Service Unavailable",
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "Error: pinging container registry 127.0.0.1:9: dial tcp 127.0.0.1:9: connect: connection refused",
]


@pytest.mark.parametrize(("said", "words"), TASK)
def test_what_no_machine_could_pull_fails_the_job(said, words):
    with pytest.raises(ImageRefused, match=words) as raised:
        Engine(("docker",)).judge(f"latest: Pulling\n{said}\n", "a/b:1", 20.0)
    assert "a/b:1" in str(raised.value)


@pytest.mark.parametrize("said", MACHINE)
def test_what_another_machine_could_run_moves_it(said):
    with pytest.raises(HostUnfit, match="not built for this machine's processor"):
        Engine(("docker",)).judge(said, "a/b:1", 20.0)


@pytest.mark.parametrize("said", NOBODY)
def test_what_may_pass_is_tried_again(said):
    Engine(("docker",)).judge(said, "a/b:1", 20.0)


def test_gpus_and_shells_that_are_not_there():
    assert NO_GPU.search(f'docker: {DAEMON}could not select device driver "" with capabilities: [[gpu]].')
    assert NO_GPU.search("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all")
    assert NO_SHELL.search('runc create failed: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown.')
    assert not NO_SHELL.search("bash: /data: no such file or directory")


def wanted(**changes) -> Wanted:
    folder = Path("/var/lib/spotbroker")
    values = {"image": "a/b:1", "name": "n", "mark": "j/1", "folder": folder, "mounts": [], "home": Path("/root")}
    return Wanted(**{**values, **changes})


def test_the_cards_go_in_by_each_engines_own_words():
    assert "--gpus" not in command(Engine(("docker",)), wanted())
    line = command(Engine(("docker",)), wanted(gpus=True))
    assert line[line.index("--gpus") + 1] == "all"
    line = command(Engine(("/usr/bin/podman", "--root", "/x"), ("--cpus=1",)), wanted(gpus=True))
    assert line[:4] == ["/usr/bin/podman", "--root", "/x", "run"]
    assert line[line.index("--device") + 1] == "nvidia.com/gpu=all"
    assert line[line.index("--cpus=1") + 1] == "a/b:1"


def test_a_machine_without_an_engine_is_unfit(tmp_path):
    with pytest.raises(HostUnfit, match="neither docker nor podman"):
        find(None, {"PATH": str(tmp_path)})
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    assert find(None, {"PATH": str(tmp_path)}).is_podman
    told = find({"argv": ["docker", "--context", "x"], "run": ["-q"], "environ": {"A": "1"}}, {"PATH": ""})
    assert (told.argv, told.run_options, told.environ["A"]) == (("docker", "--context", "x"), ("-q",), "1")


def test_where_a_programs_paths_lie(tmp_path):
    boxed = Places(tmp_path, Path("/root"), boxed=True, shared=False)
    inside = tmp_path / "work" / "ckpt"
    assert boxed.here(inside) == inside
    assert boxed.here(Path("/root/ckpt")) == tmp_path / "outside" / "root" / "ckpt"
    found = boxed.mounts([Path("/data/deep"), Path("/root/a"), Path("/data"), inside, Path("/data/deep/er")])
    assert sorted(seen for _, seen in found) == sorted([Path("/data"), Path("/root/a"), inside])
    bare = Places(tmp_path, Path("/home/me"), boxed=False, shared=True)
    assert bare.here(Path("/root/ckpt")) == Path("/root/ckpt")
