"""Write envs/cpu.yaml and envs/gpu.yaml from constraints.txt, the one list of pinned versions; --check only compares."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
HEADER = "# Written by envs/render.py from constraints.txt: edit that, then run it again.\n"


def render(name: str) -> str:
    """One conda environment: Python from conda, everything else with pip at the pinned versions."""
    pins = [line for line in (HERE / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins.append("llama-cpp-python==0.3.36")
    lines = [
        f"{HEADER}name: draftlab-{name}",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        "  - python=3.11",
        "  - pip",
        "  - cxx-compiler",
        *(["  - cuda-toolkit"] if name == "gpu" else []),
        "  - pip:",
        *(f"      - {pin}" for pin in sorted(pins, key=str.lower)),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    stale = []
    for name in ("cpu", "gpu"):
        path, text = HERE / f"{name}.yaml", render(name)
        if "--check" in sys.argv:
            stale += [path.name] if not path.exists() or path.read_text() != text else []
        else:
            path.write_text(text)
    if stale:
        sys.exit(f"envs: {', '.join(stale)} differ from constraints.txt (run: python envs/render.py)")


if __name__ == "__main__":
    main()
