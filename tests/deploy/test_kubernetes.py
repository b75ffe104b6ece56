"""The settings in the overlays for Kubernetes. `make check-deploy` checks them with kustomize and the
schemas."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from streamfl import __version__
from streamfl.configuration.settings import RoleSettings, load_kind, load_settings
from streamfl.runtime.kinds import find_kind

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
BASE = sorted(path for path in (KUBERNETES / "base").glob("*.yaml") if path.name != "kustomization.yaml")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_roles_belong_together(overlay: str) -> None:
    """Protects the first start, and learning: an obsolete key ends every pod, another seed or size gives
    other numbers."""
    roles = sorted((KUBERNETES / "overlays" / overlay).glob("*/role.toml"))
    assert len(roles) >= 2
    found: list[RoleSettings] = [load_settings(path, find_kind(load_kind(path)).settings) for path in roles]
    assert len({settings.federation.model_dump_json() for settings in found}) == 1
    assert len({settings.group for settings in found}) == len(roles)


def test_files_name_this_version() -> None:
    """Protects a deployment by the files as they are: they start the image, and install the wheel, that one
    builds beside them."""
    tags = [
        yaml.safe_load(path.read_text(encoding="utf-8"))["images"][0]["newTag"]
        for path in (
            KUBERNETES / "base" / "kustomization.yaml",
            KUBERNETES / "overlays" / "production" / "kustomization.yaml",
        )
    ]
    assert tags == [__version__] * 2
    page = (KUBERNETES.parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"streamfl-{__version__}-py3-none-any.whl" in page


@pytest.mark.parametrize("path", BASE, ids=lambda path: path.stem)
def test_the_base_follows_the_schema(path: Path) -> None:
    """Protects `kubectl apply`: a key in the wrong place is silently dropped."""
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_base_takes_every_file_that_it_has() -> None:
    """Protects the budget and the policies: kustomize does not apply a file that it does not list."""
    listed = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text(encoding="utf-8"))[
        "resources"
    ]
    assert sorted(listed) == [path.name for path in BASE]
