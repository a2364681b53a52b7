"""What the service is made of can be listed, and looked up in advisories; neither target says more than it knows."""

import json
import os
import subprocess

from packaging.requirements import Requirement

from tests.deploy.image import ROOT
from tests.test_project import locked_blocks, make, normalised


def test_the_bill_of_materials_lists_what_the_lock_names_for_this_platform_and_nothing_else() -> None:
    done = make("sbom")
    assert done.returncode == 0, done.stderr
    document = json.loads((ROOT / "build" / "sbom.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "memorypolicy"
    locked = [Requirement(block.partition("\\")[0].strip()) for block in locked_blocks()]
    expected = {
        (normalised(one.name), str(one.specifier).removeprefix("=="))
        for one in locked
        if one.marker is None or one.marker.evaluate()
    }
    assert {(normalised(one["name"]), one["version"]) for one in document["components"]} == expected


def test_an_audit_that_cannot_read_the_advisories_fails_and_says_so() -> None:
    nowhere = "http://127.0.0.1:1"
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    environment |= {"HTTPS_PROXY": nowhere, "https_proxy": nowhere}
    done = subprocess.run(["make", "audit"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No known vulnerabilities" not in done.stdout + done.stderr
    assert "make audit: a vulnerability was found, or the advisories could not be read" in done.stderr
