// What the console draws with ECharts, and nothing else: a browser reads all of a script before it draws.
// A chart or component that `console.js` begins to use belongs here too: what is missing is not drawn.
import { init, getInstanceByDom, use } from "echarts/core";
import { BarChart, HeatmapChart, LineChart, SankeyChart } from "echarts/charts";
import { GridComponent, LegendScrollComponent, MarkLineComponent, TooltipComponent, VisualMapContinuousComponent } from "echarts/components";
import { LegacyGridContainLabel } from "echarts/features";
import { CanvasRenderer } from "echarts/renderers";

use([
  BarChart, HeatmapChart, LineChart, SankeyChart,
  GridComponent, LegendScrollComponent, MarkLineComponent, TooltipComponent, VisualMapContinuousComponent,
  LegacyGridContainLabel, CanvasRenderer,
]);

window.echarts = { init, getInstanceByDom };
