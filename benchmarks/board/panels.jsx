// Draws a dashboard by Grafana's own components: its panels, chrome, units and colours. The series are in window.BOARD.
import { createRoot } from "react-dom/client";
import { createTheme, dateTime, FieldColorModeId, FieldType, getDisplayProcessor } from "@grafana/data";
import {
  BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, GlobalStyles, PanelChrome, ThemeContext, TimeSeries,
} from "@grafana/ui";

const COLUMN = 66, ROW = 30, GAP = 8; // A dashboard has 24 columns.
const board = window.BOARD;
const theme = createTheme({ colors: { mode: "dark" } });
const [from, to] = [board.begin, board.end].map((seconds) => dateTime(seconds * 1000));
const range = { from, to, raw: { from, to } };

function frameOf(panel, series, number) {
  const { thresholds, custom, ...defaults } = panel.fieldConfig?.defaults ?? {};
  const steps = (thresholds?.steps ?? [{ value: null, color: "green" }]).map(({ value, color }) => ({ value: value ?? -Infinity, color }));
  const config = {
    ...defaults,
    displayName: series.name,
    thresholds: { mode: thresholds?.mode ?? "absolute", steps },
    color: { mode: panel.type === "stat" ? FieldColorModeId.Thresholds : FieldColorModeId.PaletteClassic },
    custom: {
      drawStyle: "line", lineWidth: 2, fillOpacity: 8, showPoints: "never", spanNulls: false, axisPlacement: "auto",
      scaleDistribution: { type: "linear" }, stacking: { mode: "none" }, ...custom,
    },
  };
  const fields = [
    { name: "time", type: FieldType.time, config: {}, values: series.points.map(([seconds]) => seconds * 1000), state: {} },
    { name: series.name, type: FieldType.number, config, values: series.points.map(([, value]) => value),
      state: { seriesIndex: number, displayName: series.name } },
  ];
  for (const field of fields) field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
  return { name: series.name, refId: `A${number}`, length: series.points.length, fields };
}

function Stat({ panel, width, height }) {
  const series = panel.series.filter(({ points }) => points.length);
  const textMode = series.length > 1 ? BigValueTextMode.ValueAndName : BigValueTextMode.Value;
  return <div style={{ display: "flex" }}>{series.map((one, number) => {
    const [, last] = one.points.findLast(([, value]) => value !== null) ?? [0, NaN];
    const value = { ...frameOf(panel, one, number).fields[1].display(last), title: one.name };
    return <BigValue key={number} theme={theme} width={width / series.length} height={height} value={value} textMode={textMode}
      colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} />;
  })}</div>;
}

function Course({ panel, width, height }) {
  const frames = panel.series.filter(({ points }) => points.length).map((one, number) => frameOf(panel, one, number));
  if (!frames.length) return <div style={{ display: "grid", placeItems: "center", height }}>No data</div>;
  const legend = { displayMode: "list", placement: "bottom", showLegend: true, calcs: [] };
  return <TimeSeries frames={frames} structureRev={1} width={width} height={height} timeRange={range} timeZone="utc" theme={theme}
    legend={legend} options={{}} />;
}

function Board() {
  const panels = board.panels.filter(({ type }) => type !== "row");
  const rows = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ padding: GAP, background: theme.colors.background.canvas }}>
      <div style={{ padding: "8px 4px 12px", fontSize: 20 }}>{board.title}</div>
      <div style={{ position: "relative", height: rows * (ROW + GAP) }}>{panels.map((panel, number) => {
        const { x, y, w, h } = panel.gridPos;
        const [width, height] = [w * COLUMN - GAP, h * (ROW + GAP) - GAP];
        const Inner = panel.type === "stat" ? Stat : Course;
        return <div key={number} style={{ position: "absolute", left: x * COLUMN, top: y * (ROW + GAP), width, height }}>
          <PanelChrome title={panel.title} width={width} height={height}>
            {(innerWidth, innerHeight) => <Inner panel={panel} width={innerWidth} height={innerHeight} />}
          </PanelChrome>
        </div>;
      })}</div>
    </div>
  </ThemeContext.Provider>;
}

createRoot(document.getElementById("root")).render(<Board />);
