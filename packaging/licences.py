"""Writes an SBOM (CycloneDX) and a list of licences for the wheel and its dependencies.

    python packaging/licences.py dist/recruiter-0.1.0-py3-none-any.whl build

It lists the packages of a fresh environment with the wheel and its extra `web`. The scripts that the web console
bundles come from their manifest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MANIFEST = Path(__file__).parents[1] / "src" / "recruiter" / "web" / "static" / "vendor" / "manifest.json"


def run(*command: str | Path) -> str:
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout


def vendored() -> list[str]:
    entries = {each["package"]: each for each in json.loads(MANIFEST.read_text())}
    return [f"| {name} | {each['version']} | {each['licence']} |" for name, each in sorted(entries.items())]


def main(wheel: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recruiter-sbom-") as folder:
        place = Path(folder) / "venv"
        run(sys.executable, "-m", "venv", place)
        run(place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[web]")
        tools = Path(sys.executable).parent
        run(tools / "cyclonedx-py", "environment", place / "bin" / "python", "--output-file", out / "sbom.cdx.json")
        names = run(tools / "pip-licenses", f"--python={place / 'bin' / 'python'}", "--format=markdown")
    (out / "licences.md").write_text("\n".join([names.strip(), *vendored(), ""]))
    print(f"wrote {out / 'sbom.cdx.json'} and {out / 'licences.md'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
