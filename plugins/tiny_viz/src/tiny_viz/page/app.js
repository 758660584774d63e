"use strict";
/* The page of a profile. Whatever a profile holds is shown by textContent or on a canvas: as text. */

const COLORS = ["#3b6fb6", "#2f8f83", "#8a5fb0", "#b5651d", "#a23b52", "#4f7d2e", "#7a6a2c", "#2b7fa3", "#9a4a8c", "#5a62a8"];
const state = { summary: null, kernels: new Map(), view: "Timeline", search: "", window: null };
const element = id => document.getElementById(id);

/* Make an element: attributes, then children, which are elements or text. */
function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (name === "class") found.className = value;
    else if (name in found && name !== "list") found[name] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

async function ask(name, values = {}) {
  const response = await fetch(`api/${name}?${new URLSearchParams(values)}`);
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found;
}

const base = path => path.replaceAll("\\", "/").split("/").pop();
const where = origins => {
  const lines = new Map();
  for (const [method, file, line] of origins) {
    const place = `${base(file)}:${line}`;
    lines.set(place, [method, ...(lines.get(place) || [])]);
  }
  return [...lines].map(([place, methods]) => `${methods.join(" ")} ${place}`).join(", ");
};
const fixed = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const count = value => value.toLocaleString("en-US");
const many = (value, one) => `${count(value)} ${one}${value === 1 ? "" : one.endsWith("ch") ? "es" : "s"}`;
const took = seconds => seconds >= 1 ? `${fixed(seconds, 2)} s` : seconds >= 1e-3 ? `${fixed(seconds * 1e3, 2)} ms` : `${fixed(seconds * 1e6, 1)} us`;
const bytes = value => value >= 1e9 ? `${fixed(value / 1e9, 2)} GB` : value >= 1e6 ? `${fixed(value / 1e6, 2)} MB` : value >= 1e3 ? `${fixed(value / 1e3, 1)} kB` : `${value} B`;
/* Times on an axis, in nanoseconds, in one unit. */
const instants = ticks => { const [unit, size] = ticks[ticks.length - 1] >= 2e9 ? ["s", 1e9] : ticks[ticks.length - 1] >= 2e6 ? ["ms", 1e6] : ["us", 1e3]; return ticks.map(t => `${(t / size).toLocaleString("en-US", { maximumFractionDigits: 3 })} ${unit}`); };
const percent = value => `${fixed(value * 100, 1)} %`;
const color = number => COLORS[number % COLORS.length];
const limit = kernel => kernel.limit === null ? "?" : kernel.limit > 1 && kernel.bound === "memory" ? "in cache" : `${percent(kernel.limit)} of ${kernel.bound}`;

function tip(text, event) {
  const box = element("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
}

const words = kernel => [kernel.name, kernel.device, ...kernel.operations, ...kernel.origins.map(([method, file, line]) => `${method} ${base(file)}:${line} ${file}`)].join(" ").toLowerCase();
const matches = kernel => state.search.toLowerCase().split(/\s+/).every(word => words(kernel).includes(word));

/* --- views */

const VIEWS = { Timeline: timelineView, Kernels: kernelsView, Lines: linesView, Tensors: tensorsView, Launches: launchesView, Memory: memoryView, Failures: failuresView };
/* Views of one thing, each with the view that leads to it. */
const DETAILS = { Kernel: [kernelView, "Kernels"], Schedule: [scheduleView, "Tensors"] };

function go(view, values = {}) {
  location.hash = new URLSearchParams({ view, ...values });
}

async function show() {
  const { view = "Timeline", ...values } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  state.view = view;
  tip(null);
  const [detail, parent] = DETAILS[view] || [];
  for (const button of element("views").children) button.className = button.dataset.view === (parent || view) ? "on" : "";
  /* a new element each time: an earlier view that still waits for its answer writes into the old one */
  const main = make("main", { id: "view" });
  element("view").replaceWith(main);
  try {
    await (detail || VIEWS[view] || timelineView)(main, values);
    main.dataset.ready = view;
  } catch (error) {
    main.append(make("div", { class: "pad error" }, String(error.message || error)));
    main.dataset.ready = "error";
  }
}

function status(text) { element("status").textContent = text; }

async function timelineView(main) {
  main.className = "full";
  const box = make("div", { class: "canvas" });
  box.style.height = "100%";
  main.append(box);
  const name = (lane, span) => {
    const label = lane.kernels ? state.kernels.get(span[2]).name : timeline.data.labels[span[2]];
    return lane.kernels && span[3] > 1 ? `${count(span[3])} launches, ${label} ...` : label;
  };
  const describe = (found, event) => {
    if (!found) return tip(null);
    const { lane, span } = found, kernel = lane.kernels && state.kernels.get(span[2]);
    const lines = [name(lane, span), took(span[1] / 1e9)];
    if (kernel && span[3] === 1) lines.push(where(kernel.origins), `${fixed(kernel.ops / Math.max(span[1], 1), 2)} GFLOP/s, ${fixed(kernel.bytes / Math.max(span[1], 1), 2)} GB/s`);
    if (lane.name.startsWith("Python")) lines[1] = `about ${took(span[1] / 1e9)}, ${span[3]} samples`;
    tip(lines.filter(Boolean).join("\n"), event);
  };
  describe.label = name;
  const timeline = state.timeline = new Timeline(box, {
    end: Math.max(state.summary.nanoseconds, 1000),
    load: (from, to, pixels) => ask("timeline", { from, to, pixels }),
    color: (lane, span) => {
      if (!lane.kernels) return lane.name === "replays" ? "#77808c" : lane.name === "compilation" ? "#b58a1d" : color(span[2] + 3);
      return state.search && !matches(state.kernels.get(span[2])) ? "#9aa1ab55" : color(span[2]);
    },
    describe,
    choose: ({ lane, span }) => { if (lane.kernels && span[3] === 1) go("Kernel", { id: span[2] }); else timeline.show(span[0] - span[1] * 0.1, span[0] + span[1] * 1.1); },
  });
  if (state.window) timeline.show(...state.window);
  const before = timeline.show.bind(timeline);
  timeline.show = (from, to) => { before(from, to); state.window = [timeline.from, timeline.to]; };
  await timeline.ask();
  status("wheel: zoom, drag: move, click: kernel, double click: all; w a s d");
}

const COLUMNS = [
  ["share", k => k.share, k => percent(k.share), true], ["time", k => k.seconds, k => took(k.seconds), true],
  ["launches", k => k.launches, k => count(k.launches), true], ["mean", k => k.seconds / k.launches, k => took(k.seconds / k.launches), true],
  ["limit", k => k.limit ?? -1, limit, true], ["GFLOP/s", k => k.ops * k.launches / k.seconds, k => fixed(k.ops * k.launches / Math.max(k.seconds, 1e-12) / 1e9, 2), true],
  ["GB/s", k => k.bytes * k.launches / k.seconds, k => fixed(k.bytes * k.launches / Math.max(k.seconds, 1e-12) / 1e9, 2), true],
  ["device", k => k.device, k => k.device], ["kernel", k => k.name, k => k.name], ["where", k => where(k.origins), k => where(k.origins)],
];
const sorting = { column: 1, up: false };

async function kernelsView(main) {
  const key = COLUMNS[sorting.column][1];
  const found = state.summary.kernels.filter(matches).sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (sorting.up ? 1 : -1));
  const head = make("tr", {}, ...COLUMNS.map(([name, , , number], column) => make("th", {
    class: number ? "number" : "", title: "sort",
    onclick: () => { sorting.up = sorting.column === column && !sorting.up; sorting.column = column; show(); },
  }, name + (sorting.column === column ? sorting.up ? " ↑" : " ↓" : ""))));
  const most = Math.max(...found.map(k => k.share), 1e-9);
  const body = make("tbody", {}, ...found.slice(0, 3000).map(kernel => make("tr", { class: "link", onclick: () => go("Kernel", { id: kernel.id }) },
    ...COLUMNS.map(([name, , text, number]) => {
      const cell = make("td", { class: number ? "number" : "" }, text(kernel));
      if (name === "share") { const bar = make("span", { class: "bar" }); bar.style.width = `${60 * kernel.share / most}px`; cell.prepend(bar); }
      return cell;
    }))));
  main.append(make("table", {}, make("thead", {}, head), body));
  const rates = Object.entries(state.summary.rates).filter(([, [flops]]) => flops).map(([device, [flops, moved]]) => `${device}: ${fixed(flops / 1e9, 0)} GFLOP/s, ${fixed(moved / 1e9, 1)} GB/s`);
  status(`${count(found.length)} of ${count(state.summary.kernels.length)} kernels` + (rates.length ? `; limits as measured: ${rates.join("; ")}` : ""));
}

async function kernelView(main, { id, tab = "Overview" }) {
  main.className = "";
  const number = Number(id), known = state.kernels.get(number), found = await ask("kernel", { id });
  const head = make("div", { class: "pad" }, make("h2", {}, found.name));
  const places = make("dd", {});
  for (const [method, file, line] of found.origins) places.append(make("a", { onclick: () => go("Lines", { path: file, line }) }, `${method} ${base(file)}:${line}`), make("br"));
  const graphs = make("dd", {}), scheduled = await ask("schedules");
  for (const graph of scheduled.filter(({ kernels }) => kernels.includes(number)).slice(0, 12)) graphs.append(make("a", { onclick: () => go("Schedule", { id: graph.id, tab: "Storages" }) }, `graph ${graph.id}`), " ");
  const facts = { device: `${found.device}, ${found.queue}`, operations: found.operations.join(" "), work: `${count(found.ops)} operations, ${bytes(found.bytes)}` };
  if (known) Object.assign(facts, { time: `${took(known.seconds)}, ${percent(known.share)} of all; ${many(known.launches, "launch")}, mean ${took(known.seconds / known.launches)}`, limit: limit(known) });
  const list = make("dl", { class: "facts" }, ...Object.entries(facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]), make("dt", {}, "lines"), places, make("dt", {}, "scheduled in"), graphs);
  const tabs = make("div", { class: "tabs" }, ...["Overview", "Graph", "Passes", "Plans", "Source", "Assembly"].map(name => make("button", { class: name === tab ? "on" : "", onclick: () => go("Kernel", { id, tab: name }) }, name)));
  head.append(list, tabs);
  main.append(head);
  const body = make("div", {});
  main.append(body);
  status(found.name);
  if (tab === "Overview") {
    overview(body, found);
  } else if (tab === "Graph") {
    body.className = "canvas"; body.style.height = "70vh";
    const graph = state.graph = new Graph(body, { choose: () => {}, describe: (node, event) => tip(node && node.text, event) });
    graph.show(await ask("nodes", { id }));
  } else {
    body.append(make("p", { class: "pad soft" }, "lowering it ..."));
    const passes = await ask("passes", { id });
    body.replaceChildren();
    body.append(...told(passes));
    if (tab === "Passes") showPasses(body, passes);
    if (tab === "Plans") showPlans(body, passes.plans || []);
    if (tab === "Source") body.append(make("pre", { class: "pad" }, found.source || passes.source || ""));
    if (tab === "Assembly") body.append(make("pre", { class: "pad" }, passes.assembly || "the compiler of this device shows none"));
  }
}

/* What passes made again are: of the source that ran, of another one, or of one that nobody knows. */
function told({ error, same }) {
  if (error) return [make("p", { class: "pad error" }, error)];
  if (same) return [];
  return [same === false ? make("p", { class: "pad error" }, "Passes, plans and assembly are made here, of another source than that which ran: by another tinycore, for another machine, with rules of hooks, or with a plan of BEAM that the disk cache has no more.")
    : make("p", { class: "pad soft" }, "The source that ran is not in the profile: it came from the disk cache, or was made before. What is shown is made here, under the settings of the program, and may differ.")];
}

function overview(body, found) {
  const box = make("div", { class: "pad" });
  body.append(box);
  if (found.launches.length) {
    box.append(make("h3", {}, "Launches"));
    const plot = make("div", {});
    box.append(plot);
    const style = getComputedStyle(document.body);
    new uPlot({
      width: Math.min(innerWidth - 60, 1100), height: 220, legend: { show: false },
      scales: { x: { time: false, range: [0, state.summary.nanoseconds] } }, series: [{}, { label: "time", stroke: style.getPropertyValue("--accent"), paths: () => null, points: { show: true, size: 5 } }],
      axes: [{ stroke: style.getPropertyValue("--soft"), space: 80, values: (_, ticks) => instants(ticks) }, { stroke: style.getPropertyValue("--soft"), size: 80, values: (_, ticks) => instants(ticks) }],
    }, [found.launches.map(l => l[1]), found.launches.map(l => l[2])], plot);
    const [first] = found.launches;
    box.append(make("div", { class: "tabs" },
      make("button", { onclick: () => { state.window = [first[1] - first[2] * 5, first[1] + first[2] * 6]; go("Timeline"); } }, "First launch in the timeline"),
      make("button", { onclick: () => go("Launches", { from: Math.max(first[0] - 5, 1), count: 40 }) }, "Around the first launch")));
  }
  box.append(make("h3", {}, "Graph"), make("pre", {}, found.graph || "a copy has no graph"));
}

/* Proposals come in runs, one for each nest of loops: of each the cheapest is taken. Then come the steps of the plan. */
function showPlans(body, lines) {
  if (!lines.length) { body.append(make("p", { class: "pad soft" }, "no plan was proposed")); return; }
  const found = lines.map(line => { const [, name, cost, more] = /^proposed (.*): ([\d.,]+) cycles(.*)$/.exec(line) || []; return { line, name, cost: name && Number(cost.replaceAll(",", "")), more }; });
  const proposed = found.filter(each => each.name), others = found.filter(each => !each.name).map(each => each.line);
  if (proposed.length) body.append(make("div", { class: "pad" }, make("h3", {}, "Proposals of the planner"), tableOf(["cost in cycles", "proposal", ""], proposed.map(each => {
    const bar = make("span", { class: "bar" });
    bar.style.width = `${120 * each.cost / Math.max(...proposed.map(p => p.cost))}px`;
    return [make("span", {}, bar, fixed(each.cost, 2)), each.name, each.more];
  }), [0])));
  body.append(make("div", { class: "pad" }, make("h3", {}, "The plan that was taken"), make("pre", { class: "wrapped" }, others.join("\n\n"))));
}

function rulesOf(step) {
  return step.rules.length ? make("p", {}, "rules: ", step.rules.map(([name, times]) => `${name} × ${times}`).join(", ")) : make("p", { class: "soft" }, "no rewrite rule fired");
}

function showPasses(body, { passes }, about = rulesOf) {
  const list = make("div", { class: "list" }), shown = make("div", { class: "pad" });
  const split = make("div", { class: "split" }, list, shown);
  split.style.height = "75vh";
  body.append(split); /* below a remark */
  const choose = number => {
    [...list.children].forEach((button, n) => { button.classList.toggle("on", n === number); });
    const step = passes[number];
    shown.replaceChildren(about(step), make("pre", {}, ...step.lines.map(([kind, text, rule]) => make("div", { class: kind === "+" ? "added" : kind === "-" ? "removed" : "" }, `${kind} ${text}`, rule ? make("span", { class: "rule" }, rule) : ""))));
  };
  passes.forEach((step, number) => {
    const changed = step.lines.filter(([kind]) => kind !== " ").length;
    list.append(make("button", { class: step.changed || !number || (step.decisions || []).length ? "" : "same", onclick: () => choose(number) }, `${step.name} ${step.changed ? `(${changed})` : ""}`));
  });
  const first = passes.findIndex((step, number) => step.decisions ? step.decisions.length : number && step.changed);
  if (passes.length) choose(Math.max(first, 0));
}

async function linesView(main, { path, line }) {
  const byLine = new Map();
  for (const kernel of state.summary.kernels) {
    const lines = new Set(kernel.origins.map(([, file, number]) => `${file}:${number}`));
    for (const place of lines) {
      const known = byLine.get(place) || { kernels: [], seconds: 0 };
      known.kernels.push(kernel); known.seconds += kernel.seconds / lines.size;
      byLine.set(place, known);
    }
  }
  const costs = new Map();
  for (const [place, known] of byLine) { const file = place.slice(0, place.lastIndexOf(":")); costs.set(file, (costs.get(file) || 0) + known.seconds); }
  const files = [...costs.keys()].sort((a, b) => costs.get(b) - costs.get(a));
  const chosen = path || files[0];
  main.className = "full";
  const list = make("div", { class: "list" }, ...files.map(file => make("button", { class: file === chosen ? "on" : "", title: file, onclick: () => go("Lines", { path: file }) }, `${base(file)} ${took(costs.get(file))}`)));
  const shown = make("div", { class: "code pad" });
  main.append(make("div", { class: "split" }, list, shown));
  if (!chosen) { shown.append("no kernel leads to a line"); return; }
  const { text } = await ask("file", { path: chosen });
  const places = [...byLine].filter(([place]) => place.startsWith(chosen + ":")), most = Math.max(...places.map(([, known]) => known.seconds), 1e-12);
  let here = null;
  const rows = text ? text.split("\n") : [];
  const kernels = make("div", { class: "kernels" });
  rows.forEach((content, n) => {
    const known = byLine.get(`${chosen}:${n + 1}`);
    const row = make("div", { class: `line${known ? " hot" : ""}${String(n + 1) === line ? " here" : ""}` }, make("span", { class: "count" }, String(n + 1)), make("span", { class: "time" }, known ? took(known.seconds) : ""), make("span", {}, content || " "));
    if (known) {
      row.style.setProperty("--heat", String(8 + 50 * known.seconds / most));
      row.title = known.kernels.map(kernel => kernel.name).join("\n");
      row.addEventListener("click", () => { row.after(kernels); kernels.replaceChildren(...known.kernels.map(kernelRow)); });
    }
    if (String(n + 1) === line) here = row;
    shown.append(row);
  });
  if (!rows.length) shown.append(make("p", {}, `the text of ${chosen} is not in the profile`), ...places.map(([place, known]) => make("div", {}, place, ...known.kernels.map(kernelRow))));
  if (here) { here.scrollIntoView({ block: "center" }); here.click(); }
  status(`${chosen}: click a line for its kernels. A kernel of several lines counts with equal parts.`);
}

function kernelRow(kernel) {
  return make("div", {}, make("a", { onclick: () => go("Kernel", { id: kernel.id }) }, kernel.name), ` ${took(kernel.seconds)} in ${many(kernel.launches, "launch")}: ${kernel.operations.join(" ")}`);
}

/* An origin in text, `softmax /home/me/train.py:31`, as a link to its line. */
function originLink(origin) {
  const [, method, file, line] = /^(\S+) (.*):(\d+)$/.exec(origin) || [];
  return file ? make("a", { onclick: event => { event.stopPropagation(); go("Lines", { path: file, line }); } }, `${method} ${base(file)}:${line}`) : origin;
}

const linesOf = kernels => [...new Set(kernels.flatMap(kernel => kernel.origins.map(([, file, line]) => `${base(file)}:${line}`)))];

async function tensorsView(main) {
  const found = await ask("schedules");
  const rows = found.map(graph => ({ ...graph, kernels: graph.kernels.map(id => state.kernels.get(id)) })).filter(graph => !state.search || graph.kernels.some(k => k && matches(k)));
  const body = rows.map(graph => {
    const known = graph.kernels.filter(Boolean), lines = linesOf(known);
    const seconds = known.reduce((sum, k) => sum + k.seconds / k.launches, 0);
    return make("tr", { class: "link", onclick: () => go("Schedule", { id: graph.id }) }, ...[graph.id, `${fixed(graph.start / 1e6, 3)} ms`, count(graph.nodes), count(graph.kernels.length), count(graph.runs || 0), took(seconds)].map(text => make("td", { class: "number" }, String(text))),
      make("td", {}, lines.slice(0, 8).join(", ") + (lines.length > 8 ? `, and ${lines.length - 8} more lines` : "")));
  });
  const heads = ["graph", "first at", "nodes", "launches", "runs", "kernels of a run", "lines"];
  main.append(make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name, n) => make("th", { class: n < heads.length - 1 ? "number" : "" }, name)))), make("tbody", {}, ...body)));
  status(`${count(rows.length)} graphs of tensors were scheduled. A captured step runs without: its replays do not count as runs.`);
}

async function scheduleView(main, { id, tab = "Graph" }) {
  main.append(make("p", { class: "pad soft" }, "scheduling it ..."));
  const made = await ask("schedule", { id });
  main.replaceChildren();
  if (made.error) { main.append(make("p", { class: "pad error" }, made.error)); return; }
  const kernel = launch => launch === null || launch === undefined ? null : state.kernels.get(made.kernels[launch]);
  const link = launch => { const known = kernel(launch); return known ? make("a", { onclick: () => go("Kernel", { id: known.id }) }, `${launch} ${known.name}`) : launch === null || launch === undefined ? "" : String(launch); };
  const tabs = make("div", { class: "tabs" }, ...["Graph", "Storages", "Apart", "Launches", "Passes"].map(name => make("button", { class: name === tab ? "on" : "", onclick: () => go("Schedule", { id, tab: name }) }, name)));
  const head = make("div", { class: "pad" }, make("h2", {}, `Graph ${id}: ${many(made.nodes, "node")}, ${many(made.storages.length, "value")} stored, ${many(made.kernels.length, "launch")}`), tabs);
  if (!made.same) head.append(make("p", { class: "error" }, "This graph was cut here into other kernels than those that ran: by another tinycore, or for other devices."));
  const body = make("div", {});
  main.append(head, body);
  if (tab === "Graph") {
    main.className = "full"; body.className = "canvas"; body.style.height = `calc(100% - ${head.offsetHeight}px)`;
    const graph = state.graph = new Graph(body, { choose: node => { const known = kernel(node.kernel ? node.kernel - 1 : null); if (known) go("Kernel", { id: known.id }); }, describe: (node, event) => tip(node && node.text, event) });
    graph.show(made.diagram, true);
    status("round: in memory, others: computed inside of the kernel that has their color; wheel: zoom, drag: move, click: kernel");
  } else if (tab === "Storages") {
    body.append(tableOf(["value", "bytes", "level", "why it is stored", "launch", "line"], made.storages.map(s => [`${s.op} ${s.dtype} ${s.shape.join("×")}`, s.bytes === null ? "" : bytes(s.bytes), s.level, s.reason, link(s.launch), originLink(s.origin)]), [1]));
    status(`${count(made.storages.length)} of ${count(made.nodes)} values are stored; the others are computed where they are read`);
  } else if (tab === "Apart") {
    const side = ({ value, launch, origin }) => make("div", {}, value, make("br"), link(launch), " ", originLink(origin));
    if (made.apart.length) body.append(tableOf(["one value", "another", "why they are in two kernels"], made.apart.map(a => [...a.values.map(side), a.reason])));
    else body.append(make("p", { class: "pad soft" }, "no two values with the same loops are in two kernels; the passes tell the rest"));
    status("pairs of values with the same loops");
  } else if (tab === "Launches") {
    body.append(tableOf(["launch", "time", "limit", "operations", "lines"], made.kernels.map((number, launch) => { const k = state.kernels.get(number); return k ? [link(launch), took(k.seconds / k.launches), limit(k), k.operations.join(" "), where(k.origins)] : [link(launch), "", "", "", "it did not run while this was recorded"]; }), [1]));
    status("in the order in which they run");
  } else {
    showPasses(body, made, step => step.decisions.length ? make("pre", {}, step.decisions.join("\n")) : make("p", { class: "soft" }, "nothing was decided"));
    status("each pass with its decisions, and the graph after it");
  }
}

function tableOf(heads, rows, numbers = []) {
  const kind = n => numbers.includes(n) ? "number" : "";
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name, n) => make("th", { class: kind(n) }, name)))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((cell, n) => make("td", { class: kind(n) }, cell))))));
}

async function launchesView(main, { from = 1, count: many = 60 }) {
  main.className = "full";
  const field = (label, value, name) => make("label", {}, `${label} `, make("input", { type: "number", min: 1, value, size: 8, onchange: event => go("Launches", { from, count: many, [name]: event.target.value }) }));
  const box = make("div", { class: "canvas" });
  const told = make("span", { class: "soft" });
  main.append(make("div", { class: "column" }, make("div", { class: "tools" }, field("from launch", from, "from"), field("launches", many, "count"), make("button", { onclick: () => go("Launches", { from: Math.max(1, Number(from) - Number(many)), count: many }) }, "before"), make("button", { onclick: () => go("Launches", { from: Number(from) + Number(many), count: many }) }, "after"), told), box));
  const found = await ask("graph", { from, count: many });
  const graph = state.graph = new Graph(box, { choose: node => { if (node.kernel) go("Kernel", { id: node.kernel }); }, describe: (node, event) => tip(node && node.text, event) });
  graph.show(found);
  told.textContent = `${count(found.boxes.length)} nodes`;
  status(`launches ${from} to ${found.last}: boxes are kernels, rounded ones their memory; wheel: zoom, drag: move`);
}

async function memoryView(main) {
  const box = make("div", { class: "pad" }), plot = make("div", {}), held = make("div", { class: "pad" });
  main.append(box, held);
  const series = Object.entries(await ask("memory"));
  if (!series.length) { box.append("no kernel used memory"); return; }
  const style = getComputedStyle(document.body), end = state.summary.nanoseconds;
  const times = [...new Set(series.flatMap(([, points]) => points.map(([at]) => at)).concat([0, end]))].sort((a, b) => a - b);
  const columns = series.map(([, points]) => {
    let value = 0, next = 0;
    return times.map(time => { while (next < points.length && points[next][0] <= time) value = points[next++][1]; return value; });
  });
  box.append(make("h2", {}, `Memory that kernels use: ${series.map(([device]) => device).join(", ")}`), plot);
  const stepped = uPlot.paths.stepped({ align: 1 });
  const chart = new uPlot({
    width: innerWidth - 40, height: 280, scales: { x: { time: false } },
    legend: { show: series.length > 1 },
    series: [{ label: "at", value: (_, v) => v === null ? "" : took(v / 1e9) }, ...series.map(([device], n) => ({ label: device, stroke: color(n), fill: color(n) + "33", paths: stepped, points: { show: false }, value: (_, v) => v === null ? "" : bytes(v) }))],
    axes: [{ stroke: style.getPropertyValue("--soft"), space: 80, values: (_, ticks) => instants(ticks) }, { stroke: style.getPropertyValue("--soft"), size: 80, values: (_, ticks) => ticks.map(bytes) }],
  }, [times, ...columns], plot);
  const at = async time => {
    const found = await ask("holders", { at: Math.round(time) });
    held.replaceChildren(make("h2", {}, `In use at ${fixed(time / 1e6, 3)} ms: ${bytes(found.reduce((sum, b) => sum + b.bytes, 0))} in ${many(found.length, "buffer")}`),
      make("table", {}, make("thead", {}, make("tr", {}, ...["bytes", "device", "dtype", "from", "to", "held for", "where"].map((name, n) => make("th", { class: [0, 3, 4].includes(n) ? "number" : "" }, name)))),
        make("tbody", {}, ...found.map(b => make("tr", { class: "link", onclick: () => b.kernel && go("Kernel", { id: b.kernel }) }, make("td", { class: "number" }, bytes(b.bytes)), make("td", {}, b.device), make("td", {}, b.dtype), make("td", { class: "number" }, `${fixed(b.born / 1e6, 3)} ms`), make("td", { class: "number" }, b.died === null ? "the end" : `${fixed(b.died / 1e6, 3)} ms`), make("td", {}, `${b.written ? "written" : "read"} by ${b.name}`), make("td", {}, where(b.origins)))))));
  };
  plot.addEventListener("click", () => { const index = chart.cursor.idx; if (index !== null && index !== undefined) at(times[index]); });
  const total = times.map((_, n) => columns.reduce((sum, column) => sum + column[n], 0)), peak = total.indexOf(Math.max(...total));
  await at(times[peak]);
  status(`the peak is ${bytes(total[peak])} at ${fixed(times[peak] / 1e6, 3)} ms; click the plot for another time, drag to zoom`);
}

async function failuresView(main) {
  const found = await ask("failures");
  const box = make("div", { class: "pad" });
  main.append(box);
  if (!found.length) box.append(make("p", { class: "soft" }, "nothing failed"));
  for (const failure of found) {
    box.append(make("div", { class: "error" }, make("h2", {}, `${failure.kernel || "the program"}: ${failure.error}`),
      make("p", {}, failure.device ? `on ${failure.device}, ` : "", `at ${fixed(failure.start / 1e6, 3)} ms`, ...failure.origins.flatMap(([method, file, line]) => [", ", make("a", { onclick: () => go("Lines", { path: file, line }) }, `${method} ${base(file)}:${line}`)])),
      make("pre", {}, failure.message), make("h3", {}, "Traceback"), make("pre", {}, failure.traceback)));
  }
  status(many(found.length, "failure"));
}

async function start() {
  const summary = state.summary = await ask("summary");
  for (const kernel of summary.kernels) state.kernels.set(kernel.id, kernel);
  element("program").textContent = `${summary.about.program || summary.file}, ${took(summary.nanoseconds / 1e9)}, ${many(summary.launches, "launch")} timed`;
  element("program").title = summary.about.folder || "";
  document.title = `${summary.about.program || "profile"} - tinycore viz`;
  for (const view of Object.keys(VIEWS)) element("views").append(make("button", { "data-view": view, onclick: () => go(view) }, view === "Failures" && summary.failures ? `Failures (${summary.failures})` : view));
  for (const button of element("views").children) button.dataset.view = button.textContent.split(" ")[0];
  element("search").addEventListener("input", event => {
    state.search = event.target.value;
    if (state.view === "Timeline" && state.timeline) state.timeline.draw();
    else if (state.view === "Kernels" || state.view === "Tensors") show();
    else go("Kernels");
  });
  addEventListener("hashchange", show);
  await show();
}

start().catch(error => { element("view").textContent = String(error); });
