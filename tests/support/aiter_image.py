"""A fake ROCm image with only aiter's tables, at the paths of the real image."""

import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Final

import docker
from docker.errors import ImageNotFound
from kernel_samples import HEADER, line

COMMIT: Final = "9127c94a18e4398e1eba91f6639e910f0994ad02"
AITER: Final = "/sgl-workspace/aiter"
FILES: Final = {
    "aiter/configs/model_configs/glm5_fp4_tuned_fmoe.csv": f"{HEADER}\n{line(32)}\n",
    "aiter/configs/model_configs/glm5_fp4_untuned_fmoe.csv": "token,model_dim\n1,6144\n",
    "aiter/configs/model_configs/bf16_tuned_gemm.csv": "M,N,K\n1,2,3\n",
    "aiter/configs/tuned_fmoe.csv": f"{HEADER}\n{line(16)}\n",
    "aiter/configs/tuned_grouped_fmoe.csv": "max_m\n1\n",
    ".git/HEAD": f"{COMMIT}\n",
}


@contextmanager
def imported(engine: docker.DockerClient, links: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Import the image for the length of the block, and yield its name; `links` maps paths below `AITER` to targets."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, text in FILES.items():
            member = tarfile.TarInfo(f"{AITER.lstrip('/')}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        for path, target in links.items():
            member = tarfile.TarInfo(f"{AITER.lstrip('/')}/{path}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    repository = f"deploy-kernels-test-{os.getpid()}"  # distinct from other test runs on this machine
    engine.api.import_image_from_data(content.getvalue(), repository=repository, tag="1")
    yield f"{repository}:1"
    with suppress(ImageNotFound):
        engine.images.remove(f"{repository}:1", force=True)
