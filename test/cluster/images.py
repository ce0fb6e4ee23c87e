#!/usr/bin/env python3
"""Writes the images that the test cluster's pods run, as one docker archive: there is no registry to pull from.

Both images contain the machine's static busybox with all its applets, so the archive has one layer.
"""

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile

IMAGES = {
    "registry.k8s.io/pause:3.10": ["sleep", "1000000"],
    "docker.io/library/busybox:1.36": ["sh"],
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def add(archive, name, data=None, **attributes):
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755
    entry.size = len(data or b"")
    for attribute, value in attributes.items():
        setattr(entry, attribute, value)
    archive.addfile(entry, io.BytesIO(data or b""))


def layer(busybox):
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            add(archive, directory, type=tarfile.DIRTYPE)
        with open(busybox, "rb") as program:
            add(archive, "bin/busybox", program.read())
        add(archive, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", mode=0o644)
        for applet in applets:
            if applet != "busybox":
                add(archive, "bin/" + applet, type=tarfile.SYMTYPE, linkname="busybox")
    return buffer.getvalue()


def main(busybox, path):
    content = layer(busybox)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    manifest = []
    with tarfile.open(path, "w") as archive:
        add(archive, "layer.tar", content)
        for tag, command in IMAGES.items():
            config = json.dumps(
                {
                    "architecture": ARCHITECTURES[platform.machine()],
                    "os": "linux",
                    "config": {"Env": ["PATH=/bin"], "Cmd": command},
                    "rootfs": {"type": "layers", "diff_ids": [digest]},
                }
            ).encode()
            name = hashlib.sha256(config).hexdigest() + ".json"
            add(archive, name, config)
            manifest.append({"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]})
        add(archive, "manifest.json", json.dumps(manifest).encode())


main(*sys.argv[1:])
