"""``make check-dashboards``: Grafana's own linter, and the types of ``@grafana/schema``, on every dashboard.
Needs Go and npm.

Downloads and builds stay in ``.broker``: the linter takes minutes the first time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fetched import fetched

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("*.json"))
LINTER = "github.com/grafana/dashboard-linter@v0.2.0"
PACKAGES = ("@grafana/schema@11.6.0", "typescript@5.4.5")

# The linter's reader of a newer format needs all of Grafana to build. These dashboards use the classic
# format.
CLASSIC_ALONE = """package lint

import (
	"encoding/json"
	"errors"
)

func isV2APIVersion(string) bool { return false }

func newDashboardFromV2(json.RawMessage, string) (Dashboard, error) {
	return Dashboard{}, errors.New("left out")
}
"""
# JSON has no enumerations, so texts replace them. The builders write three further keys into every interval
# variable.
TYPES = """import type { Dashboard, VariableModel } from '@grafana/schema';
import type { Options as Tile }
  from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as Bars }
  from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type { Options as Lines, FieldConfig }
  from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Json<T> = T extends string ? `${T}` : T extends (infer U)[] ? Json<U>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Variable = Json<VariableModel> & { auto?: boolean; auto_min?: string; auto_count?: number };
type Board = Omit<Json<Dashboard>, 'templating'> & { templating: { list: Variable[] } };
"""
OPTIONS = {"stat": "Tile", "bargauge": "Bars", "timeseries": "Lines"}


def run(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


def build_linter(folder: Path) -> Path:
    found = subprocess.run(
        ["go", "mod", "download", "-json", LINTER], cwd=folder, capture_output=True, text=True
    )
    source = json.loads(found.stdout)
    if found.returncode or "Dir" not in source:
        raise RuntimeError(f"{LINTER} cannot be had: {source.get('Error', found.stderr)}")
    made = folder / "source"
    shutil.copytree(source["Dir"], made, copy_function=shutil.copyfile)
    for one in (made, *made.rglob("*")):
        os.chmod(one, 0o755)
    for path in (made / "lint").glob("v2*.go"):
        path.unlink()
    (made / "lint" / "v2.go").write_text(CLASSIC_ALONE)
    run("go", "build", "-mod=mod", "-o", folder / "dashboard-linter", ".", folder=made)
    shutil.rmtree(made)
    return folder


def install_types(folder: Path) -> Path:
    (folder / "package.json").write_text("{}")
    run("npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", *PACKAGES, folder=folder)
    return folder


def typed(boards: dict[str, Any]) -> str:
    """A program that type-checks if the dashboards are valid."""
    lines = [TYPES]
    for number, (name, board) in enumerate(boards.items()):
        lines.append(f"// {name}\nexport const board{number}: Board = {json.dumps(board, indent=1)};")
        for place, panel in enumerate(board["panels"]):
            options = OPTIONS[panel["type"]]
            lines.append(
                f"export const options{number}_{place}: Json<{options}> = {json.dumps(panel['options'])};"
            )
            if custom := panel["fieldConfig"]["defaults"].get("custom"):
                lines.append(
                    f"export const custom{number}_{place}: Json<FieldConfig> = {json.dumps(custom)};"
                )
    return "\n".join(lines)


def lint(linter: Path, path: Path) -> bool:
    done = subprocess.run(
        [linter / "dashboard-linter", "lint", "--strict", path], capture_output=True, text=True
    )
    wrong = (
        [line for line in done.stdout.splitlines() if "Dashboard '" in line and "✔" not in line]
        if done.returncode
        else []
    )
    print(f"{path.name:28} linter {'passes' if not done.returncode else 'fails'}", *wrong, sep="\n    ")
    return done.returncode == 0


def well_typed(types: Path, boards: dict[str, Any]) -> bool:
    """tsc's errors for the dashboards. The same program with a wrong word has to fail, or nothing was
    checked."""
    command = [
        types / "node_modules" / ".bin" / "tsc",
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--moduleResolution",
        "node",
    ]
    said = []
    wrong = json.loads(json.dumps(boards))
    next(iter(wrong.values()))["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "short"
    for content in (boards, wrong):
        with TemporaryDirectory(dir=types) as place:
            Path(place, "boards.ts").write_text(typed(content), encoding="utf-8")
            done = subprocess.run(
                [*command, "--target", "es2020", Path(place, "boards.ts")], capture_output=True, text=True
            )
        said.append((done.returncode, done.stdout))
    (code, text), (code_of_wrong, _) = said
    print(f"types of {PACKAGES[0]}: {'all dashboards are well typed' if not code else text[:3000]}")
    if not code_of_wrong:
        print("a wrong word was not found: the types were not looked at")
    return not code and bool(code_of_wrong)


if __name__ == "__main__":
    content = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
    passed = [lint(fetched("dashboard-linter", build_linter), path) for path in FILES]
    passed.append(well_typed(fetched("grafana-schema", install_types), content))
    sys.exit(not all(passed))
