"""Dashboards as Grafana's JSON, made by Grafana's own typed builders.

Only building dashboards needs the builders: the package grafana-foundation-sdk, which the extra
``dashboards`` installs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from string import ascii_uppercase
from zlib import crc32

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from streamfl.monitoring.dashboard import Dashboard, Panel, Query

__all__ = ["TAG", "to_json"]

TAG = "streamfl"
"""The tag of all dashboards; a menu on each dashboard leads to the others."""

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHTS = {"timeseries": 8, "bargauge": 8, "stat": 4}
Builder = timeseries.Panel | stat.Panel | bargauge.Panel


def to_json(described: Dashboard) -> str:
    """The text of the file for Grafana's import or provisioning."""
    board = (
        dashboard.Dashboard(described.title)
        .uid(described.uid)
        .description(described.description)
        .tags([TAG, *_own_tags(described)])
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("5s")
        .time("now-15m", "now")
        .version(1)
        .annotations([])
        .variables([_data_sources(), *_choices(described)])
        .links([*_links(described)])
    )
    for panel in _panels(described):
        board = board.with_panel(panel)
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


def _own_tags(described: Dashboard) -> list[str]:
    return [described.system] if described.system else []


def _links(described: Dashboard) -> Iterator[dashboard.DashboardLink]:
    """Menus of the system's other dashboards, which keep the viewer's choices, and of all dashboards."""
    for title, tags, chosen in (
        ("This system", _own_tags(described), True),
        ("All of streamfl", [TAG], False),
    ):
        if tags:
            link = (
                dashboard.DashboardLink(title).type(DashboardLinkType.DASHBOARDS).tags(tags).as_dropdown(True)
            )
            yield link.keep_time(True).include_vars(chosen)


def _data_sources() -> dashboard.DatasourceVariable:
    chosen = VariableOption(selected=True, text="Prometheus", value="streamfl-prometheus")
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus").current(chosen)


def _choices(described: Dashboard) -> Iterator[dashboard.ConstantVariable | dashboard.QueryVariable]:
    if described.system:
        yield dashboard.ConstantVariable("system").value(described.system)
    for name, label in described.choices.items():
        query = described.values_of(name)
        yield (
            dashboard.QueryVariable(name)
            .label(label)
            .query({"query": query, "refId": name})
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".+")
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )


def _panels(described: Dashboard) -> Iterator[Builder]:
    top = 0
    for row in described.rows:
        height, column = max(HEIGHTS[panel.kind] for panel in row), 0
        for panel in row:
            place = GridPos(x=column, y=top, w=panel.width, h=height)
            yield _panel(panel).id(_number(panel)).grid_pos(place)
            column += panel.width
        top += height


def _number(panel: Panel) -> int:
    """The panel's number, which links contain. It depends on the title alone, so that it stays when panels
    are added before."""
    return crc32(panel.title.encode()) % 1_000_000 + 1


def _panel(panel: Panel) -> Builder:
    makers: dict[str, Callable[[Panel], Builder]] = {"timeseries": _graph, "stat": _tile, "bargauge": _bars}
    builder = makers[panel.kind](panel)
    described = f"{panel.description}\n\n{panel.remedy}" if panel.remedy else panel.description
    builder = builder.title(panel.title).description(described).datasource(SOURCE).unit(panel.unit)
    if panel.minimum is not None:
        builder = builder.min(panel.minimum)
    if panel.maximum is not None:
        builder = builder.max(panel.maximum)
    if panel.unit == "none":
        # Counts are whole numbers, but Prometheus extrapolates an increase to values such as 3.08.
        builder = builder.decimals(0)
    if panel.nothing:
        builder = builder.no_value(panel.nothing)
    return builder.targets(
        [_target(*named, panel) for named in zip(ascii_uppercase, panel.queries, strict=False)]
    )


def _graph(_: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    return (
        timeseries.Panel()
        .legend(legend)
        .tooltip(tooltip)
        .line_width(1)
        .fill_opacity(0)
        .show_points(VisibilityMode.NEVER)
    )


def _tile(panel: Panel) -> stat.Panel:
    alone = len(panel.queries) == 1
    return (
        stat.Panel()
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(BigValueTextMode.VALUE if alone else BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(_latest())
        .thresholds(_thresholds(panel))
    )


def _bars(panel: Panel) -> bargauge.Panel:
    return bargauge.Panel().reduce_options(_latest()).thresholds(_thresholds(panel))


def _latest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green" if panel.bad_below is None else "red")]
    if panel.bad_below is not None:
        steps.append(Threshold(value=panel.bad_below, color="green"))
    if panel.bad_from is not None:
        steps.append(Threshold(value=panel.bad_from, color="red"))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _target(name: str, query: Query, panel: Panel) -> prometheus.Dataquery:
    asked = (
        prometheus.Dataquery()
        .ref_id(name)
        .expr(query.expression)
        .legend_format(query.legend)
        .datasource(SOURCE)
    )
    # A tile shows the present. With a range query it would show the last value, however old.
    return asked.range() if panel.kind == "timeseries" else asked.instant()
