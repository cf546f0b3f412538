// The console's own script: draws the charts from the JSON API, and asks for new rounds.
// Everything else is plain HTML and htmx. Texts of tooltips are drawn by ECharts on its canvas, not as HTML.
"use strict";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const palette = () => [1, 2, 3, 4, 5, 6].map((n) => color(`series-${n}`));
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(1)} %`);
const points = (value) => (value == null ? "–" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)} points`);
const whole = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en").replaceAll(",", "\u202f"));
const bytes = (value) => {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") return `${value >= 100 || unit === "B" ? Math.round(value) : value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
};
const roundName = (round) => (round === -1 ? "opening" : `round ${round}`);

function axis(extra) {
  return {
    axisLine: { onZero: false, lineStyle: { color: color("line") } },
    axisLabel: { color: color("soft"), hideOverlap: true },
    nameTextStyle: { color: color("soft") },
    splitLine: { lineStyle: { color: color("line") } },
    ...extra,
  };
}

function base(extra) {
  return {
    animation: false,
    color: palette(),
    textStyle: { fontFamily: "system-ui, sans-serif", color: color("text") },
    grid: { left: 12, right: 18, top: 64, bottom: 30, containLabel: true },
    legend: { top: 0, left: 0, type: "scroll", textStyle: { color: color("text") }, pageTextStyle: { color: color("soft") } },
    tooltip: {
      renderMode: "richText", confine: true, backgroundColor: color("card"), borderColor: color("line"),
      textStyle: { color: color("text"), fontSize: 13 },
    },
    ...extra,
  };
}

const roundAxis = (rounds) => axis({ type: "category", data: rounds, name: "round", nameLocation: "middle", nameGap: 26,
  axisLabel: { color: color("soft"), hideOverlap: true, formatter: (v) => (v === "-1" ? "open" : v) } });

function overRounds(data, lines, axes, format) {
  const shown = lines.filter((line) => data.columns[line.column]);
  if (!data.round.length || !shown.length) return null;
  return base({
    tooltip: { ...base().tooltip, trigger: "axis",
      formatter: (items) => [roundName(data.round[items[0].dataIndex]), ...items
        .filter((item) => item.value != null && !item.seriesName.startsWith("_"))
        .map((item) => `${item.seriesName}: ${format(item.seriesName, item.value, item.dataIndex)}`)].join("\n") },
    legend: { ...base().legend, data: shown.map((line) => line.name) },
    xAxis: roundAxis(data.round),
    yAxis: axes,
    series: shown.map((line) => ({
      type: "line", name: line.name, data: data.columns[line.column], connectNulls: true, yAxisIndex: line.axis || 0,
      showSymbol: data.columns[line.column].filter((v) => v != null).length < 40, symbol: "circle", symbolSize: 5, step: line.step, ...line.more,
    })),
  });
}

// The names of two axes stand above them, and end at the edges of the chart.
const atLeft = () => ({ nameTextStyle: { color: color("soft"), align: "left" } });
const atRight = () => ({ nameTextStyle: { color: color("soft"), align: "right" }, splitLine: { show: false } });
const percentAxis = (name, extra) => axis({ type: "value", name, scale: true, ...atLeft(),
  axisLabel: { color: color("soft"), formatter: (v) => `${+(100 * v).toFixed(1)}` }, ...extra });

// Values between two known ones, on the straight line: stacked areas fall to the axis where a value is missing.
function fillGaps(column) {
  const filled = [...column];
  let last = -1;
  column.forEach((value, index) => {
    if (value == null) return;
    for (let between = last + 1; last >= 0 && between < index; between++) {
      filled[between] = column[last] + (value - column[last]) * (between - last) / (index - last);
    }
    last = index;
  });
  return filled;
}

// From one multiple of 10 % to another: a lone value has no scale of its own, and nothing is above 100 %.
function shareAxis(name, columns) {
  const known = columns.flat().filter((value) => value != null);
  const min = Math.max(0, Math.min(0.9, Math.floor(10 * Math.min(...known)) / 10));
  const max = Math.min(1, Math.max(min + 0.1, Math.ceil(10 * Math.max(...known)) / 10));
  const tens = Math.round(10 * (max - min));
  return percentAxis(name, tens > 8 ? { min: 0, max: 1, interval: 0.2 } : { min, max, interval: [0.02, 0.05][tens - 1] || 0.1 });
}

const CHARTS = {
  accuracy(data) {
    const mean = fillGaps(data.columns.accuracy || []), spread = fillGaps(data.columns.accuracy_std || []);
    const low = mean.map((m, i) => (m == null ? null : m - (spread[i] || 0)));
    const high = mean.map((m, i) => (m == null ? null : m + (spread[i] || 0)));
    const option = overRounds(data, [{ column: "accuracy", name: "accuracy" }, { column: "pma", name: "PMA", axis: 1 }],
      [shareAxis("accuracy in %", [low, high]), percentAxis("PMA in points", { ...atRight(), show: Boolean(data.columns.pma) })],
      (name, value) => (name === "PMA" ? points(value) : percent(value)));
    if (!option) return null;
    const band = { type: "line", stack: "band", symbol: "none", connectNulls: true, lineStyle: { opacity: 0 }, silent: true, tooltip: { show: false } };
    option.series.push(
      { ...band, name: "_low", data: low },
      { ...band, name: "_spread", data: mean.map((m, i) => (m == null ? null : 2 * (spread[i] || 0))), areaStyle: { color: color("series-1"), opacity: 0.16 } });
    return option;
  },
  traffic(data) {
    return overRounds(data, [{ column: "bytes_up", name: "up" }, { column: "bytes_down", name: "down" }, { column: "gini", name: "Gini index", axis: 1 }],
      [axis({ type: "value", name: "bytes per round", ...atLeft(), axisLabel: { color: color("soft"), formatter: bytes } }),
        axis({ type: "value", name: "Gini index", ...atRight(), show: Boolean(data.columns.gini) })],
      (name, value) => (name === "Gini index" ? value.toFixed(3) : bytes(value)));
  },
  "heat-map"(data) {
    if (!data.accuracy.length) return null;
    const cells = data.accuracy.flatMap((row, d) => row.map((value, k) => [k, d, value]));
    const values = cells.map((cell) => cell[2]);
    const low = Math.min(...values), high = Math.max(...values);
    const middle = (low + high) / 2;
    for (const [index, cell] of cells.entries()) {
      cells[index] = { value: cell, label: { color: cell[2] > middle ? color("on-accent") : color("text") } };
    }
    return base({
      tooltip: { ...base().tooltip, formatter: (p) => `${data.models[p.value[0]]} on ${data.distributions[p.value[1]]}\n${percent(p.value[2])} at round ${data.round}` },
      grid: { left: 12, right: 18, top: 14, bottom: 62, containLabel: true },
      xAxis: axis({ type: "category", data: data.models, splitLine: { show: false } }),
      yAxis: axis({ type: "category", data: data.distributions, inverse: true, splitLine: { show: false } }),
      visualMap: { min: low, max: high === low ? low + 0.001 : high, orient: "horizontal", left: "center", bottom: 0, itemWidth: 12, itemHeight: 120,
        text: [percent(high), percent(low)], textStyle: { color: color("soft") }, inRange: { color: [color("heat-low"), color("heat-high")] } },
      series: [{ type: "heatmap", data: cells, label: { show: cells.length <= 80, formatter: (p) => (100 * p.value[2]).toFixed(1) },
        itemStyle: { borderColor: color("card"), borderWidth: 2 } }],
    });
  },
  flow(data) {
    if (!data.links.length) return null;
    const name = (round, cluster) => `${round}/${cluster}`;
    const nodes = new Set();
    for (const link of data.links) {
      nodes.add(name(link.from_round, link.from_cluster));
      nodes.add(name(link.to_round, link.to_cluster));
    }
    const tell = (id) => { const [round, cluster] = id.split("/"); return `cluster ${cluster} in round ${round}`; };
    const colors = palette();
    return base({
      tooltip: { ...base().tooltip, formatter: (p) => (p.dataType === "edge"
        ? `${p.data.value} clients\n${tell(p.data.source)}\nto ${tell(p.data.target)}` : `${p.value} clients\n${tell(p.name)}`) },
      // An axis of the rounds under the columns of the flow, which is no chart with axes of its own.
      grid: { left: 14, right: 82, top: 12, bottom: 40, containLabel: false },
      xAxis: axis({ type: "category", boundaryGap: false, data: data.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 24, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false } }),
      yAxis: { type: "value", show: false },
      series: [{
        type: "sankey", left: 8, right: 76, top: 12, bottom: 46, nodeGap: 10, nodeWidth: 12, draggable: false, layoutIterations: 0, emphasis: { focus: "adjacency" },
        data: [...nodes].sort((a, b) => Number(a.split("/")[1]) - Number(b.split("/")[1])).map((id) => ({ name: id, depth: data.rounds.indexOf(Number(id.split("/")[0])),
          itemStyle: { color: colors[Number(id.split("/")[1]) % colors.length] } })),
        links: data.links.map((link) => ({ source: name(link.from_round, link.from_cluster), target: name(link.to_round, link.to_cluster), value: link.clients })),
        lineStyle: { color: "source", opacity: 0.35 },
        label: { color: color("text"), formatter: (p) => { const [round, cluster] = p.name.split("/");
          return Number(round) === data.rounds.at(-1) ? `cluster ${cluster}` : cluster; } },
      }],
    });
  },
  balance(data) {
    return overRounds(data, [{ column: "balance", name: "balance" }], axis({ type: "value", name: "tokens", scale: true, ...atLeft(), axisLabel: { color: color("soft"), formatter: whole } }),
      (_, value) => `${whole(value)} tokens`);
  },
  "client-accuracy"(data) {
    // The reference may have been evaluated in other rounds: a threshold from an earlier one says so.
    const from = (index) => (data.columns.threshold_round[index] === data.round[index] ? "" : `, of ${roundName(data.columns.threshold_round[index])}`);
    return overRounds(data, [{ column: "accuracy", name: "its own model" }, { column: "threshold", name: "threshold", more: { lineStyle: { type: "dashed" } } }],
      shareAxis("accuracy in %", [data.columns.accuracy || [], data.columns.threshold || []]),
      (name, value, index) => percent(value) + (name === "threshold" ? from(index) : ""));
  },
  contribution(data) {
    return overRounds(data, [{ column: "psi", name: "contribution ψ", more: { type: "bar" } }, { column: "preferred", name: "preferred cluster", axis: 1, step: "end" }],
      [axis({ type: "value", name: "ψ", ...atLeft(), show: Boolean(data.columns.psi) }), axis({ type: "value", name: "cluster", minInterval: 1, ...atRight() })],
      (name, value) => (name === "preferred cluster" ? String(value) : value.toFixed(3)));
  },
  convergence(data) {
    const rounds = [...new Set(data.runs.flatMap((one) => one.convergence.round))].sort((a, b) => a - b);
    const place = new Map(rounds.map((round, index) => [round, index]));
    const series = { round: rounds, columns: {} };
    const lines = data.runs.map((one) => {
      const column = new Array(rounds.length).fill(null);
      one.convergence.round.forEach((round, index) => { column[place.get(round)] = (one.convergence.columns.accuracy || [])[index] ?? null; });
      series.columns[one.run.key] = column;
      return { column: one.run.key, name: one.run.name };
    });
    return overRounds(series, lines, shareAxis("accuracy in %", Object.values(series.columns)), (_, value) => percent(value));
  },
  "pma-cdf"(data) {
    const shown = data.runs.filter((one) => one.pma.length);
    if (!shown.length) return null;
    const colors = palette();  // a run has the colour that it has in the other chart, where the reference is shown too
    const colorOf = (run) => colors[data.runs.indexOf(run) % colors.length];
    return base({
      tooltip: { ...base().tooltip, trigger: "item", formatter: (p) => `${p.seriesName}\n${percent(p.value[1])} of the clients\ngain at most ${points(p.value[0])}` },
      legend: { ...base().legend, data: shown.map((one) => one.run.name) },
      xAxis: axis({ type: "value", scale: true, name: "gain over the reference in points", nameLocation: "middle", nameGap: 26, axisLabel: { color: color("soft"), formatter: (v) => +(100 * v).toFixed(1) } }),
      yAxis: percentAxis("clients in %", { min: 0, max: 1 }),
      series: shown.map((one) => ({ type: "line", step: "end", name: one.run.name, color: colorOf(one), symbolSize: 5, data: one.pma.map((value, index) => [value, (index + 1) / one.pma.length]),
        markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("soft"), type: "dashed" }, data: [{ xAxis: 0 }] } })),
    });
  },
};

const EMPTY = {
  accuracy: "No round has been evaluated yet. The last one always is; with evaluate.every = 1, all are.",
  "heat-map": "Nothing yet: it appears after an evaluation, if the server has models and the data has hidden distributions.",
  flow: "Nothing yet: clients of this method choose no clusters, or have done so in one round only.",
  traffic: "No round yet.",
  balance: "No tokens have moved yet.",
  "client-accuracy": "This client has not been evaluated yet.",
  contribution: "Nothing yet: this client has not taken part, or the method measures no contributions and asks for no wishes.",
  convergence: "None of these runs has been evaluated yet.",
  "pma-cdf": "No client was evaluated in both a run and the reference.",
};

function drawChart(element, data) {
  const name = element.dataset.chart;
  const option = CHARTS[name](data);
  const chart = echarts.getInstanceByDom(element);
  if (option === null) {
    if (chart) chart.dispose();
    showText(element, EMPTY[name]);
    return;
  }
  if (!chart) element.replaceChildren();
  (chart || echarts.init(element)).setOption(option, true);
  element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
}

function showText(element, text) {
  const paragraph = document.createElement("p");
  paragraph.className = "empty";
  paragraph.textContent = text;
  element.replaceChildren(paragraph);
  element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
}

const answers = new Map();

async function drawAll(isFresh) {
  const elements = [...document.querySelectorAll("[data-chart]")];
  if (isFresh) answers.clear();
  // All are asked for at once; each chart is drawn as soon as its own data is there.
  for (const { dataset: { source } } of elements) if (!answers.has(source)) answers.set(source, load(source));
  await Promise.all(elements.map(async (element) => {
    const source = element.dataset.source;
    try {
      drawChart(element, await answers.get(source));
    } catch (error) {
      answers.delete(source);
      if (!echarts.getInstanceByDom(element)) showText(element, `This chart could not be loaded (${error.message}). Reload the page to try again.`);
    }
  }));
}

async function load(source) {
  const answer = await fetch(source, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

const PAUSE = 800;  // milliseconds from one question for news to the next

async function listen(address) {
  const state = document.getElementById("live-state");
  let seen = null;
  for (;;) {
    try {
      const news = await load(address);
      state.textContent = news.is_last ? "The run is finished." : "Live: new rounds appear by themselves.";
      if (seen !== null && news.version !== seen) refresh();
      if (news.is_last) return;
      seen = news.version;
    } catch {
      state.textContent = "Connection lost, trying again …";
    }
    await new Promise((go) => { setTimeout(go, PAUSE); });
  }
}

function refresh() {
  document.body.dispatchEvent(new CustomEvent("news"));
  if (window.echarts) drawAll(true);
  const list = document.querySelector('[data-refresh="filter"]');
  if (list) htmx.ajax("GET", `/?${new URLSearchParams(new FormData(document.querySelector("form.filter")))}`, { target: "#runs", select: "#runs", swap: "outerHTML" });
}

// Ticked runs stay ticked when the table is loaded again.
const ticked = new Set();
function showTicked() {
  const button = document.getElementById("compare-button");
  if (!button) return;
  for (const box of document.querySelectorAll('#runs input[name="run"]')) box.checked = ticked.has(box.value);
  button.disabled = ticked.size < 2;
}
document.addEventListener("change", (event) => {
  if (event.target.matches('#runs input[name="run"]')) {
    if (event.target.checked) ticked.add(event.target.value); else ticked.delete(event.target.value);
    showTicked();
  }
});
document.addEventListener("htmx:afterSwap", showTicked);
document.addEventListener("htmx:responseError", (event) => {
  document.getElementById("live-state").textContent = `That did not work (${event.detail.xhr.status}). Reload the page to see why.`;
});

document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll('#runs input[name="run"]:checked')) ticked.add(box.value);
  showTicked();
  if (document.body.dataset.live) listen(document.body.dataset.live);
  if (!window.echarts) return;
  drawAll(false);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(false));
  new ResizeObserver(() => {
    for (const element of document.querySelectorAll("[data-chart]")) echarts.getInstanceByDom(element)?.resize();
  }).observe(document.querySelector("main"));
});
