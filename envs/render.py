"""Write the conda files and the container definitions from constraints.txt, the one list of pinned versions; --check only compares."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEADER = "# Written by envs/render.py from constraints.txt: edit that, then run it again.\n"
PYTHON = "3.11"
IMAGE = "debian:bookworm-slim"
CUDA_IMAGE = "nvidia/cuda:12.8.1-devel-ubuntu24.04"
# The default build of llama.cpp crashes on CPUs with AMX under gcc 12: see setup.sh.
LLAMA_FLAGS = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"
SYSTEM = (
    "apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates git python3-dev python3-venv"
    " && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/venv"
)
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "workflow")


def pins() -> list[str]:
    """The pinned packages in alphabetical order."""
    lines = (HERE / "constraints.txt").read_text().splitlines()
    return sorted((line for line in lines if line and not line.startswith("#")), key=str.lower)


def locked() -> set[str]:
    """The packages that are installed by digest."""
    lines = (HERE / "hashes.txt").read_text().splitlines()
    return {line.partition(" ")[0] for line in lines if line and line[0] not in "# "}


def conda(name: str, *more: str, flags: str = LLAMA_FLAGS) -> str:
    """One conda environment: Python from conda, everything else with pip at the pinned versions.

    CMAKE_ARGS cannot be set here (``variables`` are those of a finished environment), but a line for pip may carry the flags.
    """
    built = f' --config-settings="cmake.args={";".join(flags.split())}"'
    lines = [
        f"{HEADER}name: draftlab-{name}",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        f"  - python={PYTHON}",
        "  - pip",
        "  - cxx-compiler",
        *(f"  - {package}" for package in more),
        "  - pip:",
        *(f"      - {pin}{built if pin.startswith('llama-cpp-python==') else ''}" for pin in pins()),
    ]
    return "\n".join(lines) + "\n"


def install(cuda: str) -> str:
    """The command that installs every pinned package in a container; ``cuda`` is where ON or OFF is put in."""
    return " \\\n        ".join([f'CMAKE_ARGS="{LLAMA_FLAGS} -DGGML_CUDA={cuda}" pip install --no-cache-dir', *pins()])


def containerfile() -> str:
    """For docker and podman."""
    copied = "\n".join(f"COPY {name} /opt/draftlab/{name}" for name in SOURCES)
    return f"""{HEADER}# podman build -t draftlab -f envs/Containerfile .     and for llama.cpp on a GPU:
# podman build -t draftlab --build-arg IMAGE={CUDA_IMAGE} --build-arg GGML_CUDA=ON -f envs/Containerfile .
ARG IMAGE={IMAGE}
FROM $IMAGE
ARG GGML_CUDA=OFF
RUN {SYSTEM}
ENV PATH=/opt/venv/bin:$PATH
RUN {install("$GGML_CUDA")}
{copied}
RUN pip install --no-cache-dir --no-deps -e /opt/draftlab
"""


def apptainer() -> str:
    """For ``--sdm apptainer``."""
    copied = "\n".join(f"    {name} /opt/draftlab/{name}" for name in SOURCES)
    return f"""{HEADER}# apptainer build envs/draftlab.sif envs/apptainer.def     and for llama.cpp on a GPU (run with --apptainer-args=--nv):
# apptainer build --build-arg IMAGE={CUDA_IMAGE} --build-arg GGML_CUDA=ON envs/draftlab.sif envs/apptainer.def
Bootstrap: docker
From: {{{{ IMAGE }}}}

%arguments
    IMAGE={IMAGE}
    GGML_CUDA=OFF

%files
{copied}

%environment
    export PATH=/opt/venv/bin:$PATH

%post
    {SYSTEM}
    export PATH=/opt/venv/bin:$PATH
    {install("{{ GGML_CUDA }}")}
    pip install --no-cache-dir --no-deps -e /opt/draftlab

%runscript
    exec draftlab "$@"
"""


POST_DEPLOY = f"""{HEADER}# Snakemake runs this in a conda environment that it has just made: the pins are there, the package is not. It comes from the checkout
# that the workflow runs in, or from the one that DRAFTLAB_SOURCE names.
pip install --no-deps -e "${{DRAFTLAB_SOURCE:-.}}"
"""

FILES = {
    "cpu.yaml": lambda: conda("cpu"),
    "gpu.yaml": lambda: conda("gpu", "cuda-toolkit", flags=f"{LLAMA_FLAGS} -DGGML_CUDA=ON"),
    "cpu.post-deploy.sh": lambda: POST_DEPLOY,
    "gpu.post-deploy.sh": lambda: POST_DEPLOY,
    "Containerfile": containerfile,
    "apptainer.def": apptainer,
}


def main() -> None:
    stale = []
    for name, render in FILES.items():
        path = HERE / name
        if "--check" not in sys.argv:
            path.write_text(render())
        elif not path.exists() or path.read_text() != render():
            stale.append(name)
    wanted = {re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() + pin[pin.index("==") :] for pin in pins()}
    if locked() != {pin for pin in wanted if not pin.startswith(("torch==", "llama-cpp-python=="))}:
        stale.append("hashes.txt")  # its first lines say how it is made
    if stale:
        sys.exit(f"envs: {', '.join(stale)} differ from constraints.txt (run: python envs/render.py)")


if __name__ == "__main__":
    main()
