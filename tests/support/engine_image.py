"""A fake ROCm image with the files that `deploy add engine` reads: torch's version, aiter and its tables."""

import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import docker
from aiter_image import COMMIT
from kernel_samples import HEADER, line

PACKAGES = "/usr/lib/python3/dist-packages"
AITER = "/sgl-workspace/aiter"
TORCH = "from typing import Optional\n__version__ = '2.9.1'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
FILES: Mapping[str, str] = {
    f"{PACKAGES}/torch/version.py": TORCH.format(cuda=None, hip="'7.2.53211'"),
    f"{AITER}/aiter/configs/tuned_fmoe.csv": f"{HEADER}\n{line(16)}\n{line(32)}\n",
    f"{AITER}/.git/HEAD": f"{COMMIT}\n",
    f"{AITER}/.git/config": "[core]\n\trepositoryformatversion = 0\n",
    f"{AITER}/.git/objects/.keep": "",
    f"{AITER}/.git/refs/.keep": "",
}


@contextmanager
def layered(engine: docker.DockerClient, base: str, name: str, files: Mapping[str, str]) -> Iterator[str]:
    """Commit an image with these files on top of `base` for the length of the block; yield its name."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    container = engine.containers.create(base, command=["true"])
    try:
        container.put_archive("/", content.getvalue())
        repository, _, tag = name.rpartition(":")
        container.commit(repository=repository, tag=tag)
    finally:
        container.remove(force=True)
    yield name
    engine.images.remove(name, force=True)
