"use strict";
// Draws the charts of pushserver/console/toolkit/charts.py with Chart.js, which the theme loads. The figures and events are
// those of the table and the list beside the canvas. Lines differ by their dashes as well as by their colours.

const DASHES = [[], [7, 3], [2, 2], [10, 3, 2, 3], [4, 4], [12, 4], [1, 4], [8, 2, 2, 2, 2, 2]];
const MAX_DOTS = 40; // with more labels, a line has no dots
const MAX_NAME = 46;
const PIXELS = 17; // of a chart's width for each character of a name

// The texts of the axis. The cells of the table have the texts of the figures.
const plain = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const AXES = {
  percent: (value) => `${plain(value * 100)} %`,
  milliseconds: (value) => (value < 1000 ? `${plain(value)} ms` : `${plain(value / 1000)} s`),
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
const eventsOf = (canvas) => [...canvas.parentElement.querySelectorAll("li")];

// Bands for periods, and marks for moments, stand behind the lines. What is about one line is a ring on it.
const bands = {
  id: "bands",
  beforeDatasetsDraw({ canvas, ctx, chartArea, scales }) {
    for (const { dataset } of eventsOf(canvas).filter((event) => !event.dataset.line)) {
      const left = scales.x.getPixelForValue(Number(dataset.first)) - 1;
      const width = scales.x.getPixelForValue(Number(dataset.last)) + 1 - left;
      const isMark = dataset.first === dataset.last;
      ctx.fillStyle = colour(isMark ? dataset.family : `${dataset.family}-on`);
      ctx.fillRect(left, chartArea.top, width, chartArea.height);
      ctx.fillStyle = colour(dataset.family);
      ctx.fillRect(left - (isMark ? 2 : 0), chartArea.top, width + (isMark ? 4 : 0), 4);
    }
  },
};

function line(cells, name, n, events) {
  const data = cells.map((cell) => (cell.dataset.value ? Number(cell.dataset.value) : null));
  const isAlone = (at) => data[at - 1] == null && data[at + 1] == null;
  const rings = events.map(({ dataset }) => dataset).filter((event) => event.line === name.textContent);
  const ring = (at) => rings.find(({ first, last }) => first <= at && at <= last);
  return {
    label: name.textContent,
    data,
    texts: cells.map((cell) => cell.textContent),
    borderColor: colour(`c${n % 8}`),
    backgroundColor: colour(`c${n % 8}`),
    borderDash: DASHES[n % 8],
    borderWidth: 2,
    pointRadius: ({ dataIndex: at }) => (ring(at) ? 7 : data.length <= MAX_DOTS || isAlone(at) ? 2.5 : 0),
    pointBorderWidth: ({ dataIndex: at }) => (ring(at) ? 3 : 1),
    pointBorderColor: ({ dataIndex: at }) => colour(ring(at)?.family ?? `c${n % 8}`),
    pointBackgroundColor: ({ dataIndex: at }) => (ring(at) ? "transparent" : colour(`c${n % 8}`)),
  };
}

function draw(canvas) {
  const [[, ...names], ...rows] = [...canvas.parentElement.querySelectorAll("tr")].map((row) => [...row.cells]);
  const datasets = names.map((name, n) => line(rows.map((cells) => cells[n + 1]), name, n, eventsOf(canvas)));
  const labels = rows.map(([label]) => label.textContent);
  const { kind, unit } = canvas.dataset;
  const [along, up] = kind === "bar" ? ["y", "x"] : ["x", "y"];
  const text = { color: colour("chart-text"), maxRotation: 0, autoSkipPadding: 16 };
  const during = ([{ dataIndex: n }]) => eventsOf(canvas).filter(({ dataset }) => dataset.first <= n && n <= dataset.last);
  const most = Math.min(MAX_NAME, Math.floor(canvas.clientWidth / PIXELS));
  const legend = (chart) => Chart.defaults.plugins.legend.labels.generateLabels(chart)
    .map((item) => ({ ...item, lineDash: DASHES[item.datasetIndex % 8], lineWidth: 2 }));
  return new Chart(canvas, {
    type: kind,
    data: { labels, datasets },
    plugins: [bands],
    options: {
      animation: false,
      maintainAspectRatio: false,
      indexAxis: along,
      interaction: { mode: "index", axis: along, intersect: false },
      scales: {
        [along]: {
          grid: { display: false },
          ticks: { ...text, callback: (n) => (kind === "bar" ? [short(labels[n], most), datasets[0].texts[n]] : labels[n]) },
        },
        [up]: {
          beginAtZero: true,
          border: { display: false },
          grid: { color: colour("chart-line") },
          ticks: { ...text, callback: AXES[unit] ?? plain, maxTicksLimit: 6, precision: unit === "count" ? 0 : undefined },
        },
      },
      plugins: {
        legend: { display: kind === "line", position: "bottom", align: "start",
          labels: { color: text.color, usePointStyle: true, pointStyle: "line", pointStyleWidth: 28, generateLabels: legend } },
        tooltip: { callbacks: {
          label: ({ dataset, dataIndex }) => `${dataset.label}: ${dataset.texts[dataIndex]}`,
          footer: (items) => during(items).map((event) => event.textContent),
        } },
      },
    },
  });
}

// What is under the pointer stays so when the dashboard replaces its charts.
function drawAll() {
  const old = Object.values(Chart.instances);
  const pointed = old.map((chart) => chart.getActiveElements());
  for (const chart of old) chart.destroy();
  document.querySelectorAll(".plot canvas").forEach((canvas, n) => {
    const chart = draw(canvas);
    if (!pointed[n]?.length) return;
    chart.setActiveElements(pointed[n]);
    chart.tooltip.setActiveElements(pointed[n], { x: 0, y: 0 });
    chart.update();
  });
}

document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSwap", drawAll);
new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["class"] }); // the dark theme
