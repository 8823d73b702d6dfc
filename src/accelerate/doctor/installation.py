"""Which versions are installed, and whether they fit together, read from their metadata: nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

from accelerate.doctor.finding import Finding, Visit, failure, ok, warning

#: The packages whose requirements are compared with what is installed.
LOOKED_AT = (
    "accelerate", "torch", "torchdata", "torchvision", "torchao", "transformers", "tokenizers", "safetensors",
    "huggingface_hub", "peft", "trl", "diffusers", "datasets", "bitsandbytes", "deepspeed", "torch_xla",
)  # fmt: skip


def versions(visit: Visit) -> Iterator[Finding]:
    """Yield what is installed, and every requirement among these packages that isn't met."""
    del visit
    found = {name: version for name in LOOKED_AT if (version := version_of(name)) is not None}
    if "torch" not in found:
        yield failure("torch isn't installed", "install it: see https://pytorch.org/get-started")
    unmet = [text for name in found for text in unmet_requirements(name)]
    for text in unmet:
        yield warning(text, "install versions that fit: `pip check` names all that don't")
    if not unmet and "torch" in found:
        python = ".".join(str(part) for part in sys.version_info[:3])
        yield ok(f"Python {python}, " + ", ".join(f"{name} {version}" for name, version in found.items()))


def version_of(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unmet_requirements(name: str) -> Iterator[str]:
    """Yield a sentence for each requirement of a package that an installed package doesn't meet."""
    from packaging.requirements import Requirement

    for text in metadata.requires(name) or ():
        wanted = Requirement(text)
        there = version_of(wanted.name)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if there is None and applies and "extra" not in str(wanted.marker):
            yield f"{name} {version_of(name)} needs {wanted.name}, which isn't installed"
        elif there is not None and applies and not wanted.specifier.contains(there, prereleases=True):
            yield f"{name} {version_of(name)} needs {wanted.name}{wanted.specifier}, but {there} is installed"
