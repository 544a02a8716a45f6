"""Fetches the test suites that other projects ship in their source distributions; nothing of them is copied in here.

``python tests/compat/fetch.py kombu`` downloads the source of the installed version with pip, from whichever index
pip is configured for, and unpacks it into a cache that git ignores. What is there already is not fetched again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).resolve().parent / ".cache"


class FetchError(Exception):
    """pip could not fetch a source distribution."""


def place_of(package: str) -> Path:
    """Where the source of the installed version is, or will be."""
    return CACHE / f"{package}-{version(package)}"


def fetch(package: str) -> Path:
    """Download and unpack the source distribution of the installed version, unless it is there.

    Returns:
        The unpacked source.

    Raises:
        FetchError: pip failed; the message holds what pip said.
    """
    place = place_of(package)
    if place.is_dir():
        return place
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        wanted = f"{package}=={version(package)}"
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", package, "--dest", temporary, wanted]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        archives = list(Path(temporary).glob("*.tar.gz"))
        if done.returncode or not archives:
            raise FetchError(
                f"pip cannot fetch the source of {wanted}, which holds the tests; they need an index that has it:\n"
                f"{done.stdout.strip()}"
            )
        with tarfile.open(archives[0]) as archive:
            archive.extractall(temporary, filter="data")
        (unpacked,) = (path for path in Path(temporary).iterdir() if path.is_dir())
        shutil.move(unpacked, place)
    return place


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            print(fetch(name))
    except FetchError as error:
        sys.exit(str(error))
