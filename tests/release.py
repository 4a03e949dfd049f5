"""`python -m tests.release`, which `make test-release` runs: builds the packages and installs them as users would.

Wheel and sdist are built and checked by twine; then each extra is installed alone in an environment of its own, and
what it is for is imported. Without extras, what comes beside torch is listed, and nothing heavy may be among it.
`--python` repeats the install without extras for other interpreters. An environment takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "": "import longshort; longshort.HeadPlan.long_short(4, 1, 8)",
    "hf": "import longshort.hf; longshort.hf.LongShortForCausalLM",
    "report": "import longshort.report, altair, vl_convert",
    "slurm": "import longshort.train, submitit",
    "tensorboard": "import longshort.train, tensorboard",
    "trl": "import longshort.hf.trl, trl",
    "eval": "import longshort.hf.harness, lm_eval",
}
"""What is imported where an extra is installed. vLLM and wandb are left out: the first has `make test-vllm`, the second
needs an account."""
ECO = ("trl", "eval")
HEAVY = {"transformers", "datasets", "pandas", "pyarrow", "scipy", "matplotlib", "altair", "trl", "lm-eval", "vllm"}
"""What nobody gets without asking for it."""
OWN = ("filelock", "numpy", "pyyaml", "rich", "safetensors", "tokenizers", "typer")
SIZES = """
import importlib.metadata as m, json, os
def size(d): return sum(os.path.getsize(p) for f in d.files or () if os.path.isfile(p := d.locate_file(f)))
def needs(name, seen):
    name = name.lower().replace("_", "-")
    if name in seen: return
    try: d = m.distribution(name)
    except m.PackageNotFoundError: return
    seen.add(name)
    for r in d.requires or ():
        if "extra ==" not in r: needs(__import__("re").match(r"[A-Za-z0-9._-]+", r)[0], seen)
torch, ours = set(), set()
needs("torch", torch)
for name in %r: needs(name, ours)
print(json.dumps({n: size(m.distribution(n)) / 1e6 for n in sorted(ours - torch)}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--extras", default=",".join(EXTRAS), help="only these, separated by commas")
    parser.add_argument("--python", nargs="*", default=[], help="other interpreters, without extras")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build(Path(folder))
        for extra in options.extras.split(","):
            install(wheel, extra, sys.executable, Path(folder))
        install(sdist, "", sys.executable, Path(folder))
        for python in options.python:
            install(wheel, "", python, Path(folder))
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, which twine finds well-formed."""
    tools = environment(sys.executable, folder / "tools")
    call(tools, "-m", "pip", "install", "--quiet", "build", "twine", "hatchling")
    call(tools, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT)
    (wheel,), (sdist,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    call(tools, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def install(package: Path, extra: str, python: str, folder: Path) -> None:
    """Install the package with one extra, import what it is for, and run `longshort check` where there is none."""
    place = folder / "environment"
    inside = environment(python, place)
    constraints = ROOT / ("constraints-eco.txt" if extra in ECO else "constraints.txt")
    what = f"{package}[{extra}]" if extra else package
    # The pins are those of CI's Python; another one may need other versions, but for torch's.
    pins = ["-c", constraints] if python == sys.executable else ["torch==2.13.0"]
    call(inside, "-m", "pip", "install", "--quiet", what, *pins)
    call(inside, "-W", "error::DeprecationWarning:longshort", "-c", EXTRAS[extra], cwd=folder)
    if not extra:
        call(inside, "-m", "longshort", "check", cwd=folder)
        sizes = json.loads(call(inside, "-c", SIZES % (OWN,), cwd=folder))
        print(f"beside torch: {sum(sizes.values()):.0f} MB in {len(sizes)} packages: {', '.join(sizes)}")
        assert not HEAVY & {*sizes}, sizes
    print(f"{package.name}[{extra}] with {python}: installed and imported", flush=True)
    subprocess.run(["rm", "-rf", place], check=True)


def environment(python: str, place: Path) -> Path:
    subprocess.run([python, "-m", "venv", place], check=True)
    return place / "bin" / "python"


def call(python: Path, *arguments: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([python, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
