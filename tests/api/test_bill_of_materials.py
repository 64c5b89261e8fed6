"""The committed bill of materials names what the tests run with, and everything that is asked for."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {normal(name): version.strip() for name, version in pairs}


def listed():
    return json.loads((ROOT / "sbom.json").read_text())


def test_components_are_the_pinned_versions():
    found = {normal(part["name"]): part["version"] for part in listed()["components"]}
    assert found == pinned()


def test_every_component_has_an_address():
    for part in listed()["components"]:
        assert part["purl"] == f"pkg:pypi/{normal(part['name'])}@{part['version']}"


def test_it_is_about_this_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = listed()["metadata"]["component"]
    assert (about["name"], about["version"]) == (project["name"], project["version"])


def test_everything_that_is_asked_for_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for part in project["optional-dependencies"].values() for line in part)]
    names = {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in asked} - {"ratewise"}
    assert sorted(names - pinned().keys()) == []
