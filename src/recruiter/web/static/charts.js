// The charts of the overview. They draw the numbers of the table below them, so both always say the same.
"use strict";
(() => {
  const OUTCOMES = ["succeeded", "failed", "cancelled", "lost"];
  const TIMES = { latency: 5, duration: 8 };
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  let zoomed = (/^#zoom=(\d+)-(\d+)$/.exec(location.hash) || []).slice(1).map(Number);
  const iso = (at) => new Date(Math.round(at) * 1000).toISOString();
  const hour = (at) => new Date(at * 1000).toTimeString().slice(0, 5);
  const jobsOf = (since, until) => `jobs?ended_since=${iso(since)}&ended_until=${iso(until)}`;
  const faint = (hex) => hex + "1f"; // 12 %

  function numbers() {
    const rows = [...document.querySelectorAll("#series tbody tr")];
    const cell = (row, place) => row.children[place];
    const minute = (row, place) => Number(cell(row, place).textContent) / (Number(row.dataset.s) / 60);
    const seconds = (row, place) => (cell(row, place).dataset.v === undefined ? null : Number(cell(row, place).dataset.v));
    const at = rows.map((row) => Number(row.dataset.at));
    return {
      ended: [at, ...OUTCOMES.map((_, place) => rows.map((row) => minute(row, place + 1)))],
      latency: [at, ...[0, 1, 2].map((place) => rows.map((row) => seconds(row, TIMES.latency + place)))],
      duration: [at, ...[0, 1, 2].map((place) => rows.map((row) => seconds(row, TIMES.duration + place)))],
    };
  }

  // A drag shows a part of the time in every chart, and leads to its jobs; the address keeps it.
  function zoom(range) {
    zoomed = range;
    history.replaceState(history.state, "", `${location.pathname}${location.search}${range.length ? `#zoom=${range.join("-")}` : ""}`);
    draw(false);
  }

  function sayZoom() {
    const place = document.getElementById("zoomed");
    place.hidden = !zoomed.length;
    if (!zoomed.length) return place.replaceChildren();
    const link = Object.assign(document.createElement("a"), { href: jobsOf(...zoomed), textContent: `Jobs that ended from ${zoomed.map(hour).join(" to ")}` });
    const whole = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "show the whole time" });
    whole.addEventListener("click", () => zoom([]));
    place.replaceChildren(link, " · ", whole);
  }

  function leads(plot) {
    plot.over.addEventListener("click", () => {
      const at = plot.cursor.idx, row = document.querySelectorAll("#series tbody tr")[at];
      if (row && !plot.dragged) location.assign(row.querySelector("a").href);
    });
    plot.over.addEventListener("mousedown", () => { plot.dragged = false; });
  }

  // Stacked: each line is the sum of itself and those beneath it; the legend tells its own value.
  function stacked(data) {
    const sums = [data[0]];
    for (let place = data.length - 1; place >= 1; place--) {
      const above = sums[1];
      sums.splice(1, 0, data[place].map((value, at) => value + (above ? above[at] : 0)));
    }
    return sums;
  }

  const short = (value) => (value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 100 ? `${Math.round(value)}` : `${Number(value.toPrecision(2))}`);
  const lasting = (value) => (value === null || value === undefined ? "–" : value < 1 ? `${Number((value * 1000).toPrecision(2))}ms` : value < 60 ? `${Number(value.toPrecision(2))}s` : value < 3600 ? `${Math.round(value / 60)}m` : `${Math.round(value / 360) / 10}h`);

  // The next number that is easy to read, and so is its half.
  function round(value) {
    const unit = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 3, 4, 5, 6, 8, 10].find((times) => times * unit >= value * 0.9999) * unit;
  }

  // A value between two gaps is no line: it is shown as a point.
  const lone = (values) => values.some((value, at) => value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null);

  function options(kind, width, raw) {
    const dim = colour("dim"), line = colour("line");
    const told = kind === "ended" ? short : lasting;
    const names = kind === "ended" ? OUTCOMES : ["p50", "p95", "p99"];
    const tints = kind === "ended" ? OUTCOMES.map(colour) : [colour("accent"), colour("postponed"), colour("cancelled")];
    const axis = { stroke: dim, font: "11px system-ui", grid: { show: false }, ticks: { show: false } };
    return {
      width, height: 160, padding: [8, 24, 0, 0],
      cursor: { sync: { key: "overview" }, points: { size: 6 }, drag: { x: true, y: false, setScale: false, dist: 5 } },
      hooks: { setSelect: [(u) => {
        if (u.select.width < 5) return;
        u.dragged = true;
        const ends = [u.select.left, u.select.left + u.select.width].map((x) => Math.round(u.posToVal(x, "x")));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        zoom(ends);
      }] },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, round(Math.max(high || 0, kind === "ended" ? 1 : 0.01)) * 1.08] } },
      axes: [
        { ...axis, space: 70, size: 24, values: (_, splits) => splits.map((at) => { const d = new Date(at * 1000); return raw[0].at(-1) - raw[0][0] > 86400 * 1.5 ? `${d.getDate()}.${d.getMonth() + 1}.` : d.toTimeString().slice(0, 5); }) },
        { ...axis, size: 46, splits: (u) => { const top = u.scales.y.max / 1.08; return [0, top / 2, top]; }, values: (_, splits) => splits.map((value) => (value ? told(value) : "0")), grid: { show: true, stroke: line, width: 1, filter: (_, splits) => splits.map((value) => (value === 0 ? 0 : null)) } },
      ],
      series: [
        { label: "at", value: (_, at) => (at === null ? "" : new Date(at * 1000).toTimeString().slice(0, 5)) },
        ...names.map((name, place) => ({
          label: name, stroke: tints[place], width: 1.5, spanGaps: false, points: { show: kind === "ended" ? false : (u, series) => lone(u.data[series]), size: 4 },
          fill: kind === "ended" ? faint(tints[place]) : undefined,
          value: (u, _, series, at) => { const data = u.raw || raw; const index = at === null || at === undefined ? data[0].length - 1 : at; const value = data[series][index]; return value === null || value === undefined ? "–" : told(value); },
        })),
      ],
    };
  }

  function draw(anew) {
    const all = document.querySelector("#series") ? numbers() : null;
    if (!all || !all.ended[0].length) return;
    for (const place of document.querySelectorAll("[data-chart]")) {
      const kind = place.dataset.chart, raw = all[kind];
      const data = kind === "ended" ? stacked(raw) : raw;
      const known = drawn.get(kind);
      if (known && !anew && known.place === place) {
        known.plot.raw = raw;
        known.plot.setData(data);
        if (zoomed.length) known.plot.setScale("x", { min: zoomed[0], max: zoomed[1] });
        if (known.plot.width !== place.clientWidth) known.plot.setSize({ width: place.clientWidth, height: 160 });
        continue;
      }
      if (known) known.plot.destroy();
      place.replaceChildren();
      const plot = new uPlot(options(kind, place.clientWidth, raw), data, place);
      plot.raw = raw;
      if (zoomed.length) plot.setScale("x", { min: zoomed[0], max: zoomed[1] });
      leads(plot);
      drawn.set(kind, { plot, place });
    }
    sayZoom();
  }

  document.addEventListener("recruiter:content", () => draw(false));
  document.addEventListener("recruiter:theme", () => draw(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  let waiting = null;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => draw(false), 150); });
  draw(true);
})();
