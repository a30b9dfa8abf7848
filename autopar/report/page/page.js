"use strict";
// Draws the pictures of a page from the report's JSON, which stands beside this script. Everything is text or SVG, so
// that it can be selected, printed and read aloud; a number stands as <data value=...> with its exact value.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const at = (id) => document.getElementById(id);
  const step = report.step;
  const axes = report.mesh.map(([name]) => name);

  // Text ------------------------------------------------------------------------------------------------------------
  const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => ESCAPES[c]);

  function threeDigits(value) {
    const tops = [99.95, 9.995, 0.9995];
    const found = tops.findIndex((top) => Math.abs(value) >= top);
    const decimals = found < 0 ? 3 : found;
    const text = value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
  }

  function time(seconds) {
    if (seconds === 0) return "0 s";
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]]) {
      if (Math.abs(seconds) >= 0.9995 * size) return `${threeDigits(seconds / size)} ${unit}`;
    }
    return `${Number((seconds / 1e-9).toPrecision(2))} ns`;
  }

  function bytes(size) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let exponent = 0;
    for (; Math.abs(size) >= 1023.5 && exponent < units.length - 1; exponent++) size /= 1024;
    return `${threeDigits(size)} ${units[exponent]}`;
  }

  const count = (number) => number.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const percent = (share) => `${threeDigits(100 * share)} %`;
  const data = (value, shown) => `<data value="${value}">${escaped(shown(value))}</data>`;
  const more = (seconds) => (seconds === 0 ? "0 s" : `${seconds > 0 ? "+" : ""}${time(seconds)}`);
  const type = (node) => `${node.dtype}[${node.shape.join(", ")}]`;

  function table(heads, rows, own = -1) {
    const right = (n) => (heads[n].startsWith(">") ? ' class="right"' : "");
    const head = heads.map((name, n) => `<th${right(n)}>${escaped(name.replace(/^>/, ""))}</th>`).join("");
    const body = rows.map((row, n) => {
      const cells = row.map((cell, column) => `<td${right(column)}>${cell}</td>`).join("");
      return `<tr${n === own ? ' class="own"' : ""}>${cells}</tr>`;
    });
    return `<table><tr>${head}</tr>${body.join("")}</table>`;
  }

  // Placements as squares -------------------------------------------------------------------------------------------
  const colour = (axis) => `var(--axis-${axes.indexOf(axis) % 4})`;

  function squares(dims, unreduced, x, y, size = 10) {
    const shown = dims.map((split, n) => {
      const left = x + n * (size + 3);
      if (!split.length) return `<rect class="hollow" x="${left + 0.5}" y="${y + 0.5}" width="${size - 1}" height="${size - 1}"/>`;
      const width = size / split.length;
      return split.map((axis, k) => `<rect fill="${colour(axis)}" x="${left + k * width}" y="${y}" width="${width}" height="${size}"/>`).join("");
    });
    const end = x + dims.length * (size + 3);
    const sums = unreduced.map((axis, n) => `<text x="${end + n * 9}" y="${y + size}" fill="${colour(axis)}" style="fill:${colour(axis)};font-weight:700">Σ</text>`);
    return { text: shown.join("") + sums.join(""), width: end - x + unreduced.length * 9 + 3 };
  }

  function placed(node, side) {
    const lists = node[`${side}_dims`];
    return lists.map((dims, n) => {
      const picture = squares(dims, side === "out" ? node.out_unreduced[n] : [], 0, 1);
      return `<div class="placed">${dims.length ? `<svg width="${picture.width}" height="13" >${picture.text}</svg>` : ""}${escaped(node[`${side}s`][n])}</div>`;
    }).join("");
  }

  // What runs: a column for each phase, a row for each node, edges beside them ------------------------------------------
  const PHASES = ["forward", "recompute", "backward", "update"];
  const WIDTH = 232, ROW = 34, LANE = 6, LANES = 6, TOP = 40;
  const places = new Map();

  function columns() {
    return PHASES.map((phase) => ({
      phase,
      nodes: step.nodes.map((node, n) => ({ node, n })).filter(({ node }) => node.is_main && node.phase === phase),
      total: step.nodes.reduce((sum, node) => sum + (node.phase === phase ? node.time_s : 0), 0),
    })).filter(({ nodes }) => nodes.length);
  }

  // Edges of neighbours are short lines; each other one gets a lane of its own to the left of the boxes it passes.
  function lanes(nodes) {
    const row = new Map(nodes.map(({ n }, position) => [n, position]));
    const edges = nodes.flatMap(({ node, n }) => node.reads.filter((from) => row.has(from)).map((from) => ({ from, to: n, first: row.get(from), last: row.get(n) })));
    const taken = [];
    for (const edge of edges.sort((a, b) => a.last - a.first - (b.last - b.first))) {
      if (edge.last - edge.first < 2) { edge.lane = -1; continue; }
      edge.lane = taken.findIndex((spans) => spans.every(([first, last]) => edge.last <= first || last <= edge.first));
      if (edge.lane < 0) edge.lane = taken.push([]) - 1;
      taken[edge.lane].push([edge.first, edge.last]);
    }
    return { edges, count: taken.length };
  }

  const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  function box({ node, n }, x, y) {
    const moves = node.axes.length > 0;
    const picture = squares(node.out_dims[0] || [], node.out_unreduced[0] || [], x + 8, y + 6);
    const keys = node.inputs.map((path) => /(\w+)\W*$/.exec(path)).filter(Boolean).map((found) => found[1]);
    const said = [node.kind, ...new Set(keys)].join(" ");
    const below = moves ? [bytes(node.size_bytes), node.axes.join("*"), node.link].filter(Boolean).join(", ") : node.source;
    const room = Math.floor((WIDTH - picture.width - 78) / 7.6);
    places.set(n, { x, y });
    return `<a href="#node-${n}" class="node${moves ? " moves" : ""}" data-node="${n}"><title>${escaped(`${said}, ${node.source || "no source"}: ${type(node)} ${node.outs.join(", ")}`)}</title>`
      + `<rect class="box" x="${x}" y="${y}" width="${WIDTH}" height="${ROW - 4}" rx="${moves ? 13 : 4}"/>${picture.text}`
      + `<text x="${x + picture.width + 10}" y="${y + 14}" font-weight="600">${escaped(short(said, room))}</text>`
      + `<text x="${x + WIDTH - 8}" y="${y + 14}" text-anchor="end" class="mono">${time(node.time_s)}</text>`
      + `<text x="${x + 8}" y="${y + 26}" class="quiet" style="font-size:10px">${escaped(short(below, 42))}</text></a>`;
  }

  // Layers that come as often stand in one bracket.
  function folds(nodes, x) {
    const found = [];
    let first = 0;
    nodes.forEach(({ node }, n) => {
      const next = nodes[n + 1];
      if (next && next.node.runs === node.runs) return;
      if (node.runs > 1) {
        const [top, bottom] = [TOP + first * ROW, TOP + n * ROW + ROW - 4];
        found.push(`<path class="fold" d="M${x},${top} h5 V${bottom} h-5"/><text x="${x + 9}" y="${(top + bottom) / 2 + 4}" class="quiet">× ${count(node.runs)}</text>`);
      }
      first = n + 1;
    });
    return found.join("");
  }

  function drawGraph() {
    let x = 8, height = 0;
    const parts = columns().map(({ phase, nodes, total }) => {
      const { edges, count: wide } = lanes(nodes);
      const left = x + Math.min(wide, LANES) * LANE + 10;
      const boxes = nodes.map((one, n) => box(one, left, TOP + n * ROW));
      const paths = edges.map(({ from, to, first, last, lane }) => {
        const [top, bottom] = [TOP + first * ROW + ROW - 4, TOP + last * ROW];
        if (lane < 0) return `<path class="edge" data-ends="${from} ${to}" d="M${left + 22},${top} V${bottom}"/>`;
        const away = left - 8 - (lane % LANES) * LANE;
        const [from_y, to_y] = [top - (ROW - 4) / 2, bottom + (ROW - 4) / 2];
        return `<path class="edge" data-ends="${from} ${to}" d="M${left},${from_y} H${away + 4} Q${away},${from_y} ${away},${from_y + 4} V${to_y - 4} Q${away},${to_y} ${away + 4},${to_y} H${left}"/>`;
      });
      const head = `<text class="head" x="${left}" y="16">${phase}</text><text class="quiet" x="${left}" y="31">${time(total)} in ${count(step.nodes.reduce((sum, node) => sum + (node.phase === phase ? node.runs : 0), 0))} runs</text>`;
      const brackets = folds(nodes, left + WIDTH + 3);
      x = left + WIDTH + 36;
      height = Math.max(height, TOP + nodes.length * ROW);
      return head + paths.join("") + boxes.join("") + brackets;
    });
    at("graph-picture").innerHTML = `<svg width="${x}" height="${height + 8}" role="group" aria-label="operators and collectives of a step">${parts.join("")}<g id="far"></g></svg>`;
    at("axes").innerHTML = report.mesh.map(([name, size]) => `<span><i style="background:${colour(name)}"></i>${escaped(name)} = ${data(size, count)}</span>`).join("")
      + '<span><i style="border:1px solid var(--faint)"></i>whole</span><span><b>Σ</b> to be summed</span>';
  }

  // What is chosen ----------------------------------------------------------------------------------------------------
  function facts(node) {
    const rows = [
      ["line", escaped(node.source || "none")],
      ["phase", escaped(node.phase)],
      ...(node.inputs.length ? [["inputs", node.inputs.map(escaped).join(", ") + (node.runs > 1 ? " and the like" : "")]] : []),
      ["runs", `${data(node.runs, count)} in a step`],
      ["time", `${data(node.time_s, time)} in all runs, ${percent(node.time_s / report.step_time_s)} of a step`],
    ];
    if (node.axes.length) {
      rows.push(["axes", escaped(node.axes.join(", "))], ["link", escaped(node.link || "not known")],
        ["role", escaped(node.role)], ["bytes", `${data(node.size_bytes, bytes)} in all runs`],
        ["exposed", `${data(node.exposed_s, time)} longer is the step for it`], ["why", escaped(node.reason)]);
    } else {
      rows.push(["parts", data(node.split, count)]);
    }
    rows.push(["result", escaped(type(node))], ["operands", placed(node, "in")], ["results", placed(node, "out")]);
    return `<table>${rows.map(([name, cell]) => `<tr><td>${name}</td><td>${cell}</td></tr>`).join("")}</table>`;
  }

  function alternatives(node) {
    if (node.axes.length) return "";
    if (!node.alternatives.length) return "<h4>Alternatives</h4><p>Not known: of a saved plan, or of an operator that costs little.</p>";
    const rows = node.alternatives.map((option) => [placed(option, "in"), placed(option, "out"), data(option.costs_s, more)]);
    return `<h4>Alternatives</h4>${table(["operands", "results", ">costs"], rows, 0)}
      <p>What a step costs more if one of these operators alone runs so, and what is sent around it is chosen anew. Neither memory nor constraints are looked at.</p>`;
  }

  // Of each input that a node reads: where else it could lie.
  function moved(node) {
    return step.inputs.filter((one) => node.inputs.includes(one.name)).map((one) => {
      const rows = one.alternatives.map((option) => [escaped(option.placement), data(option.costs_s, more)]);
      return `<h4>${escaped(one.name)}, placed otherwise</h4>${table(["placement", ">costs"], rows, 0)}`;
    }).join("");
  }

  function choose() {
    const found = /^#node-(\d+)$/.exec(location.hash);
    const node = found && step.nodes[Number(found[1])];
    document.querySelectorAll(".chosen, .near").forEach((element) => element.classList.remove("chosen", "near"));
    at("far").innerHTML = "";
    if (!node) {
      at("chosen").innerHTML = "<p>Choose an operator or a collective in the picture.</p>";
      return;
    }

    const n = Number(found[1]);
    at("chosen").innerHTML = `<h3>${escaped(node.kind)}${node.name ? ` in ${escaped(node.name)}` : ""}</h3>${facts(node)}${alternatives(node)}${moved(node)}`;
    const readers = step.nodes.map((other, k) => [other, k]).filter(([other]) => other.reads.includes(n)).map(([, k]) => k);
    const near = [...node.reads, ...readers];
    document.querySelectorAll("a[data-node]").forEach((element) => {
      const own = Number(element.dataset.node);
      element.classList.toggle("chosen", own === n);
      element.classList.toggle("near", near.includes(own));
    });
    document.querySelectorAll(".edge").forEach((edge) => edge.classList.toggle("near", edge.dataset.ends.split(" ").includes(String(n))));
    at("far").innerHTML = [...node.reads.map((from) => [from, n]), ...readers.map((to) => [n, to])].map(far).join("");
    const shown = document.querySelector("a.chosen");
    if (shown) shown.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // An edge from one column to another: drawn for what is chosen only, as there are many.
  function far([from, to]) {
    const [a, b] = [places.get(from), places.get(to)];
    if (!a || !b || a.x === b.x) return "";
    const [start, end] = a.x < b.x ? [a.x + WIDTH, b.x] : [a.x, b.x + WIDTH];
    const [first, last] = [a.y + (ROW - 4) / 2, b.y + (ROW - 4) / 2];
    const middle = (start + end) / 2;
    return `<path class="edge near" d="M${start},${first} C${middle},${first} ${middle},${last} ${end},${last}"/>`;
  }

  // When it runs, and what is held: two pictures over the same stretch of time --------------------------------------------
  const WIDE = 1200, LEFT = 112, SPAN = WIDE - LEFT - 12;
  const end = step ? Math.max(report.step_time_s, ...step.held.times_s.slice(-1)) : 0;
  let stretch = [0, end];
  const place = (seconds) => LEFT + SPAN * (seconds - stretch[0]) / (stretch[1] - stretch[0]);

  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let n = Math.ceil(low / unit); n * unit <= high; n++) found.push(n * unit);
    return found;
  }

  function timeAxis(y, height) {
    return ticks(...stretch, 8).map((t) => `<path class="grid" d="M${place(t)},${y - height} V${y}"/><text class="quiet" text-anchor="middle" x="${place(t)}" y="${y + 14}">${time(Number(t.toPrecision(12)))}</text>`).join("");
  }

  // What is too narrow to be seen apart is one bar with what runs beside it, in the colour of most of it.
  function bars(spans, y, height, fill) {
    const found = [];
    let narrow = null;
    const close = () => {
      if (!narrow) return;
      const [best] = Object.entries(narrow.colours).sort((a, b) => b[1] - a[1]);
      found.push(`<rect x="${narrow.from}" y="${y}" width="${Math.max(narrow.to - narrow.from, 0.5)}" height="${height}" fill="${best[0]}"/>`);
      narrow = null;
    };
    for (const [n, start, stop] of spans) {
      if (stop < stretch[0] || start > stretch[1]) continue;
      const [from, to] = [Math.max(place(start), LEFT), Math.min(place(stop), LEFT + SPAN)];
      const node = step.nodes[n], own = fill(node);
      if (to - from < 1.5) {
        if (narrow && from - narrow.to > 0.5) close();
        narrow = narrow || { from, to, colours: {} };
        narrow.to = Math.max(to, narrow.to);
        narrow.colours[own] = (narrow.colours[own] || 0) + to - from;
        continue;
      }
      close();
      const room = Math.floor((to - from - 6) / 6.4);
      const label = room >= 4 ? `<text class="in" x="${from + 4}" y="${y + height / 2 + 4}">${escaped(short(node.kind, room))}</text>` : "";
      found.push(`<a href="#node-${n}"><title>${escaped(`${node.kind} ${node.source}: ${time(stop - start)}`)}</title><rect x="${from}" y="${y}" width="${to - from - 0.3}" height="${height}" fill="${own}"/>${label}</a>`);
    }
    close();
    return found.join("");
  }

  function loops(y) {
    return step.loops.filter((loop) => loop.end_s > stretch[0] && loop.start_s < stretch[1]).map((loop) => {
      const [from, to] = [Math.max(place(loop.start_s), LEFT), Math.min(place(loop.end_s), LEFT + SPAN)];
      return `<rect class="loop" x="${from}" y="${y}" width="${to - from}" height="16"/><text x="${from + 4}" y="${y + 12}" font-size="11">${to - from > 90 ? `${escaped(loop.kind)} × ${threeDigits(loop.rounds)}, the first shown` : ""}</text>`;
    }).join("");
  }

  const phaseColour = (node) => `var(--${PHASES.includes(node.phase) ? node.phase : "forward"})`;

  function drawTimeline() {
    const top = step.loops.length ? 22 : 0;
    const height = top + 74;
    at("timeline").innerHTML = `<svg viewBox="0 0 ${WIDE} ${height + 22}" width="100%">${timeAxis(height, 70 + top)}
      <text x="0" y="${top + 20}">computing</text><text x="0" y="${top + 56}">communicating</text>${top ? '<text x="0" y="14">loops</text>' + loops(2) : ""}
      ${bars(step.computing, top + 2, 30, phaseColour)}${bars(step.communicating, top + 38, 30, () => "var(--moving)")}</svg>`;
    at("stretch").innerHTML = `${data(stretch[0], time)} to ${data(stretch[1], time)} of a step of ${data(report.step_time_s, time)}`;
  }

  function drawLegend() {
    const shown = columns().map(({ phase }) => `<span><i style="background:var(--${phase})"></i>${phase}</span>`);
    at("timeline-legend").innerHTML = [...shown, '<span><i style="background:var(--moving)"></i>collective</span>'].join("");
  }

  const held = step ? step.held : { times_s: [], held_bytes: [], kinds: [] };
  const totals = held.times_s.map((_, n) => held.held_bytes.reduce((sum, row) => sum + row[n], 0));
  const peak = totals.reduce((best, total, n) => (total > totals[best] ? n : best), 0);

  // A stack of steps: along its upper edge and back along the lower one.
  function area(low, high) {
    const across = held.times_s.map(place);
    const last = across.length - 1;
    let path = `M${across[0]},${high[0]}`;
    for (let n = 1; n <= last; n++) path += `H${across[n]}V${high[n]}`;
    path += `V${low[last]}`;
    for (let n = last - 1; n >= 0; n--) path += `V${low[n]}H${across[n]}`;
    return `${path}Z`;
  }

  function drawHeld() {
    const height = 240, limit = report.memory_limit_bytes;
    const shows = limit !== null && limit < 1.5 * report.peak_memory_bytes;
    const most = 1.08 * Math.max(report.peak_memory_bytes, totals[peak] || 1, shows ? limit : 0);
    const level = (size) => 8 + (height - 8) * (1 - size / most);
    let below = held.times_s.map(() => 0);
    const areas = held.held_bytes.map((row, kind) => {
      const above = below.map((size, n) => size + row[n]);
      const path = area(below.map(level), above.map(level));
      below = above;
      return `<path fill="var(--held-${kind})" d="${path}"/>`;
    });
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(most) / 10));
    const grid = ticks(0, most / unit, 5).map((n) => `<path class="grid" d="M${LEFT},${level(n * unit)} H${LEFT + SPAN}"/><text class="quiet" text-anchor="end" x="${LEFT - 6}" y="${level(n * unit) + 4}">${bytes(n * unit)}</text>`);
    const line = (size, name) => `<path class="limit" d="M${LEFT},${level(size)} H${LEFT + SPAN}"/><text x="${LEFT + SPAN - 4}" y="${level(size) - 4}" text-anchor="end">${name} ${bytes(size)}</text>`;
    const limits = shows && Math.abs(level(limit) - level(report.peak_memory_bytes)) > 14 ? line(limit, "limit") : "";
    at("held").innerHTML = `<svg viewBox="0 0 ${WIDE} ${height + 22}" width="100%"><clipPath id="inside"><rect x="${LEFT}" y="0" width="${SPAN}" height="${height}"/></clipPath>
      ${grid.join("")}<g clip-path="url(#inside)">${areas.join("")}</g>${timeAxis(height, 0)}${line(report.peak_memory_bytes, "peak")}${limits}</svg>`;
  }

  function tellHeld(n) {
    const when = n === peak ? `${time(held.times_s[n])}, at the peak` : time(held.times_s[n]);
    const rows = held.kinds.map((kind, k) => [`<i style="background:var(--held-${k})"></i>${escaped(kind)}`, data(held.held_bytes[k][n], bytes), percent(totals[n] ? held.held_bytes[k][n] / totals[n] : 0)]);
    rows.push(["all", data(totals[n], bytes), ""]);
    const kept = report.peak_memory_bytes > totals[peak] ? `<p>The compiler may set aside ${data(report.peak_memory_bytes, bytes)}: that is the peak of the report.</p>` : "";
    at("held-table").innerHTML = table([`at ${when}`, ">bytes", ">share"], rows) + kept;
  }

  function drawTimes() { drawTimeline(); drawHeld(); }

  function timeAt(picture, event) {
    const frame = picture.querySelector("svg").getBoundingClientRect();
    const x = (event.clientX - frame.left) * WIDE / frame.width;
    const share = Math.min(Math.max((x - LEFT) / SPAN, 0), 1);
    return stretch[0] + share * (stretch[1] - stretch[0]);
  }

  function listen(picture) {
    let first = null;
    picture.addEventListener("pointerdown", (event) => { first = timeAt(picture, event); });
    picture.addEventListener("pointermove", (event) => {
      const now = timeAt(picture, event);
      if (picture.id === "held") tellHeld(Math.max(held.times_s.findLastIndex((t) => t <= now), 0));
      if (first === null) return;
      picture.querySelectorAll(".dragged").forEach((element) => element.remove());
      const [from, to] = [place(Math.min(first, now)), place(Math.max(first, now))];
      picture.querySelector("svg").insertAdjacentHTML("beforeend", `<rect class="dragged" x="${from}" y="0" width="${to - from}" height="100%"/>`);
    });
    picture.addEventListener("pointerleave", () => { if (picture.id === "held") tellHeld(peak); });
    window.addEventListener("pointerup", (event) => {
      if (first === null) return;
      const range = [first, timeAt(picture, event)].sort((a, b) => a - b);
      first = null;
      if (place(range[1]) - place(range[0]) > 5) stretch = range;
      drawTimes();
    });
  }

  // Collectives, rivals, the front ----------------------------------------------------------------------------------------
  function drawLinks() {
    const found = new Map();
    for (const node of step.nodes.filter((one) => one.axes.length && one.is_main)) {
      const key = JSON.stringify([node.link, node.role, node.kind, node.axes]);
      const sums = found.get(key) || { ...node, runs: 0, size_bytes: 0, time_s: 0, exposed_s: 0, nodes: [] };
      for (const name of ["runs", "size_bytes", "time_s", "exposed_s"]) sums[name] += node[name];
      sums.nodes.push(step.nodes.indexOf(node));
      found.set(key, sums);
    }
    const rows = [...found.values()].sort((a, b) => b.time_s - a.time_s);
    if (!rows.length) { at("links-table").innerHTML = "<p>None: nothing crosses a link.</p>"; return; }
    const longest = rows[0].time_s || 1;
    at("links-table").innerHTML = table(["link", "role", "kind", "axes", ">runs", ">bytes", ">time", ">exposed", ""], rows.map((row) => [
      escaped(row.link || "-"), escaped(row.role), `<a href="#node-${row.nodes[0]}">${escaped(row.kind)}</a>`, escaped(row.axes.join(", ")),
      data(row.runs, count), data(row.size_bytes, bytes), data(row.time_s, time), data(row.exposed_s, time),
      `<span class="share" style="width:${(14 * row.time_s / longest).toFixed(3)}rem"><b style="width:${(100 * Math.min(row.exposed_s / (row.time_s || 1), 1)).toFixed(2)}%"></b></span>`,
    ])) + "<p>The dark part of a bar is exposed: by so much it makes the step longer.</p>";
  }

  const mesh = (row) => escaped(row.mesh.map(([name, size]) => `${name}=${size}`).join(" x "));

  function drawRivals() {
    const own = { name: "the plan", fits: true, mesh: report.mesh, layout: "", step_time_s: report.step_time_s, peak_memory_bytes: report.peak_memory_bytes, reason: "" };
    const rows = [own, ...report.rivals];
    const longest = Math.max(...rows.map((row) => (row.reason ? 0 : row.step_time_s)));
    const verdict = (row) => {
      if (row === own) return "";
      if (row.reason) return escaped(`no plan: ${row.reason}`);
      const change = row.step_time_s / report.step_time_s - 1;
      return row.fits ? `${change >= 0 ? "+" : ""}${percent(change)}` : "does not fit";
    };
    at("rivals-table").innerHTML = table(["layout", ">step time", "", "to the plan", ">peak memory", "mesh"], rows.map((row) => [
      escaped(row.name) + (row.layout ? `<br><small>${escaped(row.layout)}</small>` : ""), row.reason ? "-" : data(row.step_time_s, time),
      row.reason ? "" : `<span class="share ${row.fits ? "plain" : "unfit"}" style="width:${(14 * row.step_time_s / longest).toFixed(3)}rem"></span>`,
      verdict(row), row.reason ? "-" : data(row.peak_memory_bytes, bytes), mesh(row),
    ]), 0) + "<p>Each is the best plan of its kind that was found: what the pins of a layout leave open is searched.</p>";
  }

  function drawFront() {
    const points = report.front, height = 260, wide = 760;
    const span = (values) => { const [low, high] = [Math.min(...values), Math.max(...values)]; const gap = 0.08 * (high - low) || 0.05 * high || 1; return [low - gap, high + gap]; };
    const [least, most] = span(points.map((p) => p.peak_memory_bytes));
    const [fastest, slowest] = span(points.flatMap((p) => [p.objective_s, p.lower_bound_s]));
    const px = (size) => LEFT + (wide - LEFT - 12) * (size - least) / (most - least);
    const py = (seconds) => 10 + (height - 10) * (1 - (seconds - fastest) / (slowest - fastest));
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(most) / 10));
    const across = ticks(least / unit, most / unit, 5).map((n) => `<path class="grid" d="M${px(n * unit)},10 V${height}"/><text class="quiet" text-anchor="middle" x="${px(n * unit)}" y="${height + 15}">${bytes(n * unit)}</text>`);
    const up = ticks(fastest, slowest, 5).map((t) => `<path class="grid" d="M${LEFT},${py(t)} H${wide - 12}"/><text class="quiet" text-anchor="end" x="${LEFT - 6}" y="${py(t) + 4}">${time(Number(t.toPrecision(12)))}</text>`);
    const curve = points.map((p, n) => (n ? `H${px(p.peak_memory_bytes)}V${py(p.objective_s)}` : `M${px(p.peak_memory_bytes)},${py(p.objective_s)}`)).join("");
    const dots = points.map((p) => `<path class="bound" d="M${px(p.peak_memory_bytes) - 5},${py(p.lower_bound_s)} h10"/><circle class="point" r="4" cx="${px(p.peak_memory_bytes)}" cy="${py(p.objective_s)}"><title>${escaped(`${bytes(p.peak_memory_bytes)}, ${time(p.objective_s)}`)}</title></circle>`);
    at("front-picture").innerHTML = `<svg viewBox="0 0 ${wide} ${height + 36}" width="${wide}" style="max-width:100%">${across.join("")}${up.join("")}<path class="curve" d="${curve}"/>${dots.join("")}
      <text class="quiet" text-anchor="middle" x="${(LEFT + wide) / 2}" y="${height + 32}">peak memory of a device; dashes are lower bounds of the objective</text></svg>`;
    const own = points.findIndex((p) => p.objective_s === report.objective_s && p.peak_memory_bytes === report.peak_memory_bytes);
    at("front-table").innerHTML = table([">limit", ">peak memory", ">objective", ">lower bound", ">step time", "mesh", "layout"], points.map((p) => [
      p.memory_limit_bytes === null ? "-" : data(p.memory_limit_bytes, bytes), data(p.peak_memory_bytes, bytes), data(p.objective_s, time),
      data(p.lower_bound_s, time), data(p.step_time_s, time), mesh(p), escaped(p.layout)]), own);
  }

  if (step) {
    drawGraph();
    drawLegend();
    drawTimes();
    tellHeld(peak);
    drawLinks();
    choose();
    window.addEventListener("hashchange", choose);
    at("whole").addEventListener("click", () => { stretch = [0, end]; drawTimes(); });
    listen(at("timeline"));
    listen(at("held"));
  }
  if (report.rivals.length) drawRivals();
  if (report.front.length) drawFront();
})();
