"""Every template of `examples/configs` starts what its first line says, and hands each of its lines on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from accelerate.launchers.hardware import Hardware
from tests.launch.plans import CPU, plan_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPLATES = sorted((EXAMPLES / "configs").glob("*.yaml"))
#: The sections of a config file, and what the variables begin with that its lines become.
SECTIONS = {"fsdp_config": "FSDP_", "parallelism_config": "PARALLELISM_CONFIG_"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_every_line_reaches_the_script(template: Path) -> None:
    text = template.read_text()
    content = yaml.safe_load(text)
    on_cpu = template.stem.endswith("_cpu")
    plan = plan_of("SCRIPT", text, CPU if on_cpu else Hardware("cuda", 8))
    assert (plan.num_processes, plan.num_machines) == (content["num_processes"], content.get("num_machines", 1))
    assert plan.env.get("ACCELERATE_USE_CPU") == ("true" if on_cpu else None)
    assert plan.env.get("ACCELERATE_MIXED_PRECISION", "no") == content.get("mixed_precision", "no")
    for section, start in SECTIONS.items():
        said = {key.upper(): str(value).lower() for key, value in content.get(section, {}).items()}
        given = {name: value.lower() for name, value in plan.env.items() if name.startswith(start)}
        assert given == said
    assert text.startswith("# ")
