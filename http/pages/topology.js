// The live picture of the server, drawn from the events of /v1/troupe/events.
import { byId, element, eventsOf, notice, problemOf, request, showModel } from "./common.js";

const kSvg = "http://www.w3.org/2000/svg";
const kWait = [500, 1000, 2000, 4000];  // ms before the next try to connect
// Column and row of the parts that are known; others come below.
const kPlaces = {
  HTTP: [0, 0], gateway: [1, 0], session: [2, 0], tokenizer: [3, 0], metrics: [1, 1], engine_link: [2, 1], media: [3, 1], front_link: [2, 2],
  grammar: [4, 2], scheduler: [3, 2], cache: [3, 3], worker_link: [4, 3], worker: [5, 3],
};
// The same where the window is narrow: two columns.
const kNarrowPlaces = {
  HTTP: [0, 0], gateway: [1, 0], tokenizer: [0, 1], session: [1, 1], media: [0, 2], engine_link: [1, 2], metrics: [0, 3], front_link: [1, 3],
  grammar: [0, 4], scheduler: [1, 4], cache: [0, 5], worker_link: [1, 5], worker: [1, 6],
};
const kWidth = 130, kHeight = 56, kColumn = 165, kRow = 96;
const narrow = matchMedia("(max-width: 44rem)");

let opening = null;   // who there is
let last = null;      // the last state
let rates = {};       // tokens a second, smoothed
let follows = "";     // the id of the request that is followed
let connection = null;

// ---- The graph --------------------------------------------------------------------------------------

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const nodes = new Map();  // name → {box, below}

function drawGraph() {
  nodes.clear();
  const names = ["HTTP", ...opening.actors.map((actor) => actor.name), "worker"];
  const places = narrow.matches ? kNarrowPlaces : kPlaces;
  const columns = narrow.matches ? 2 : 6, free = narrow.matches ? 7 : 3;  // the first row for those that are not known
  const unknown = names.filter((name) => !places[name]);
  const place = (name) => places[name] ?? [unknown.indexOf(name) % columns, free + Math.floor(unknown.indexOf(name) / columns)];
  const rows = 1 + Math.max(...names.map((name) => place(name)[1]));
  const centre = (name) => [kWidth / 2 + 6 + place(name)[0] * kColumn, kHeight / 2 + 6 + place(name)[1] * kRow];
  const picture = svg("svg", { viewBox: `0 0 ${(columns - 1) * kColumn + kWidth + 12} ${(rows - 1) * kRow + kHeight + 12}`, role: "img", "aria-label": "The actors and who sends to whom" },
    svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0L8 4L0 8z" }))));
  const links = [{ from: "engine_link", to: "front_link", both: true }, { from: "worker_link", to: "worker", both: true }];
  // Without an engine its actors are not known, nor is what links them.
  const arrows = [{ from: "HTTP", to: "gateway" }, ...opening.arrows, ...links.filter(({ from, to }) => names.includes(from) && names.includes(to))];
  for (const { from, to, both } of arrows) {
    const [x1, y1] = centre(from), [x2, y2] = centre(to);
    const [dx, dy] = [x2 - x1, y2 - y1];
    // From border to border of the boxes.
    const share = Math.min(kWidth / 2 / Math.abs(dx || 1e-9), kHeight / 2 / Math.abs(dy || 1e-9));
    const line = svg("line", { x1: x1 + dx * share, y1: y1 + dy * share, x2: x2 - dx * share, y2: y2 - dy * share, "marker-end": "url(#tip)" });
    if (both) line.setAttribute("marker-start", "url(#tip)");
    picture.append(line);
  }
  for (const name of names) {
    const [x, y] = centre(name);
    const below = svg("text", { x, y: y + 15, class: "quiet" });
    const title = svg("text", { x, y: y - 3 });
    title.textContent = name;
    const box = svg("g", {}, svg("rect", { x: x - kWidth / 2, y: y - kHeight / 2, width: kWidth, height: kHeight, rx: 8 }), title, below);
    picture.append(box);
    nodes.set(name, { box, below });
  }
  byId("graph").replaceChildren(picture);
}
narrow.addEventListener("change", () => {
  if (!opening) return;
  drawGraph();
  if (last) colourGraph(last);
});

/** Of the actors of one name: the worst of them, and what they have together. */
function together(name, actors) {
  const own = actors.filter((actor) => actor.name === name);
  return {
    count: own.length,
    answered: own.every((actor) => actor.answered),
    mailbox: own.reduce((sum, actor) => sum + actor.mailbox, 0),
    delay: Math.max(0, ...own.map((actor) => actor.answer_ms)),
  };
}

function colourGraph(state) {
  // Of several engines the actors have a number behind their names: scheduler-1.
  const way = new Set((followed(state)?.steps ?? []).map((step) => step.actor.replace(/-\d+$/, "")));
  const workers = (state.server?.processes ?? []).filter((process) => process.name.startsWith("worker"));
  for (const [name, { box, below }] of nodes) {
    let look = "good", text = "";
    if (name === "worker") {
      look = workers.length > 0 && workers.every((worker) => worker.state === "ready") ? "good" : "bad";
      const states = [...new Set(workers.map((worker) => worker.state || "starting"))].join(", ");
      text = workers.length > 1 ? `${workers.length}: ${states}` : states;
    } else if (name === "HTTP") {
      look = state.state === "ready" ? "good" : "late";
      text = state.state;
    } else {
      const own = together(name, state.actors);
      look = own.count === 0 ? "" : own.answered ? "good" : "late";
      text = own.count === 0 ? "not started" : `${own.count > 1 ? `${own.count}: ` : ""}mailbox ${own.mailbox} · ${own.delay.toFixed(1)} ms`;
    }
    box.setAttribute("class", `${look}${way.has(name) ? " on-way" : ""}`);
    below.textContent = text;
  }
}

// ---- Tables -----------------------------------------------------------------------------------------

function fill(table, heads, rows) {
  const cell = (name, value, head) => {
    const node = element(name, { className: head.startsWith("#") ? "number" : "" }, value);
    if (name === "td") node.dataset.head = head.replace("#", "");  // shown beside the value where the window is narrow
    else node.scope = "col";
    return node;
  };
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...heads.map((head) => cell("th", head.replace("#", ""), head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell("td", value, heads[i]))))));
}

const stateText = (good, text, look = "bad-text") => element("span", { className: good ? "good-text" : look, textContent: text });

function duration(seconds) {
  const s = Math.floor(seconds);
  if (s >= 86400) return `${Math.floor(s / 86400)}d ${Math.floor(s % 86400 / 3600)}h`;
  if (s >= 3600) return `${Math.floor(s / 3600)}h ${Math.floor(s % 3600 / 60)}m`;
  return s >= 60 ? `${Math.floor(s / 60)}m ${s % 60}s` : `${s}s`;
}

function showTables(state) {
  const rule = new Map(opening.actors.map((actor) => [actor.name, actor]));
  fill(byId("actors"), ["actor", "state", "#mailbox", "#delay", "#restarts", "when it dies", "bounded by"], state.actors.map((actor) => [
    state.actors.some((other) => other !== actor && other.name === actor.name) ? `${actor.name} ${actor.number}` : actor.name,
    stateText(actor.answered, actor.answered ? "answers" : "late", "late-text"), String(actor.mailbox), `${actor.answer_ms.toFixed(2)} ms`,
    String(actor.restarts), rule.get(actor.name)?.on_down ?? "", rule.get(actor.name)?.bound ?? ""]));
  const server = state.server;
  fill(byId("processes"), ["process", "state", "#pid", "#up", "#restarts"], (server?.processes ?? []).map((process) => [
    process.name, stateText(process.state === "ready", process.state || "starting"), String(process.pid || "–"), duration(process.uptime_s), String(process.restarts)]));
  fill(byId("queues"), ["queue", "#depth", "#capacity"], (server?.queues ?? []).map((queue) => [
    queue.name, queue.depth.toLocaleString("en"), queue.capacity.toLocaleString("en")]));
}

function showBlocks(server) {
  const blocks = server?.kv_blocks ?? {};
  const total = blocks.total || 0;
  const bar = element("div", { className: "bar", role: "img", ariaLabel: `KV blocks: ${blocks.leased} leased, ${blocks.cached} cached, ${blocks.moving} moving, ${blocks.free} free` });
  const words = element("p", { className: "figures" });
  for (const state of ["leased", "cached", "moving", "free"]) {
    const part = element("span", { className: state });
    part.style.width = total > 0 ? `${100 * (blocks[state] || 0) / total}%` : "0";
    bar.append(part);
    words.append(element("span", {}, element("span", { className: `swatch ${state}` }), `${state} `, element("b", { textContent: (blocks[state] || 0).toLocaleString("en") })));
  }
  words.append(element("span", {}, "in all ", element("b", { textContent: total.toLocaleString("en") })));
  byId("blocks").replaceChildren(bar, words);
}

// ---- Requests ---------------------------------------------------------------------------------------

const followed = (state) => !follows ? null : state.request?.id === follows ? state.request : state.requests.find((one) => one.id === follows) ?? null;

function showRequests(state) {
  fill(byId("requests"), ["request", "#seconds ago", "last step", ""], state.requests.map((one) => [
    element("code", { textContent: one.id }), (one.age_ms / 1000).toFixed(1), `${one.steps.at(-1)?.actor}: ${one.steps.at(-1)?.event}`,
    element("button", { type: "button", textContent: "Follow", ariaLabel: `Follow ${one.id}`, onclick: () => follow(one.id) })]));
  const place = byId("way");
  const one = followed(state);
  if (!follows) {
    place.replaceChildren();
  } else if (!one) {
    place.replaceChildren(element("p", { textContent: `No request with the id ${follows} is among the last ones of this server.` }));
  } else {
    const table = element("table");
    fill(table, ["#", "#after", "actor", "event", ""], one.steps.map((step, i) => [
      String(i + 1), `${step.ms.toFixed(2)} ms`, step.actor, step.event.replaceAll("_", " "), step.details]));
    place.replaceChildren(element("h3", {}, "The way of ", element("code", { textContent: one.id })), element("div", { className: "scroll" }, table));
  }
}

function follow(id) {
  follows = id.trim();
  byId("request").value = follows;
  history.replaceState(null, "", follows ? `#${encodeURIComponent(follows)}` : "/topology");
  if (last) show(last);
  connection?.abort("follow");  // the stream is asked again, with this id
}

// ---- The stream -------------------------------------------------------------------------------------

function showSummary(state, before) {
  const seconds = before ? (state.t_ms - before.t_ms) / 1000 : 0;
  for (const kind of ["generated", "prompt"]) {
    const more = before ? state.tokens[kind] - before.tokens[kind] : 0;
    if (seconds > 0 && more >= 0) rates[kind] = 0.5 * (rates[kind] ?? 0) + 0.5 * more / seconds;
  }
  const figure = (name, value, look = "") => element("span", {}, `${name} `, element("b", { className: look, textContent: value }));
  const queue = (name) => state.server?.queues.find((one) => one.name === name)?.depth ?? "–";
  const restarts = (state.server?.processes ?? []).reduce((sum, process) => sum + process.restarts, 0);
  const now = state.server?.state ?? state.state;
  byId("summary").replaceChildren(
    figure("state", now, now === "ready" ? "good-text" : "bad-text"), figure("output tokens/s", (rates.generated ?? 0).toFixed(1)),
    figure("prompt tokens/s", (rates.prompt ?? 0).toFixed(1)), figure("running", String(queue("running"))), figure("waiting", String(queue("waiting"))),
    figure("restarts of processes", String(restarts)));
}

function show(state) {
  showTables(state);
  showBlocks(state.server);
  showRequests(state);
  colourGraph(state);
}

async function watch() {
  const query = follows ? `?request=${encodeURIComponent(follows)}` : "";
  connection = new AbortController();
  const response = await request(`/v1/troupe/events${query}`, { signal: connection.signal });
  if (!response.ok) throw new Error(await problemOf(response));
  notice("");
  for await (const { event, data } of eventsOf(response)) {
    if (event === "opening") {
      opening = JSON.parse(data);
      drawGraph();
    } else if (event === "state") {
      const state = JSON.parse(data);
      showSummary(state, last);
      last = state;
      if (document.visibilityState === "visible") show(state);
    }
  }
  throw new Error("The server ended the stream.");
}

byId("follow").addEventListener("submit", (event) => { event.preventDefault(); follow(byId("request").value); });
function followAddress() {
  try { follows = decodeURIComponent(location.hash.slice(1)); } catch { follows = ""; }
  byId("request").value = follows;
}
window.addEventListener("hashchange", () => { followAddress(); connection?.abort("follow"); });
followAddress();
showModel();
for (let tries = 0; ; ) {
  try {
    await watch();
  } catch (problem) {
    if (problem === "follow") { tries = 0; continue; }
    const wait = kWait[Math.min(tries++, kWait.length - 1)];
    notice(`${problem.message} Trying again.`);
    for (const { box } of nodes.values()) box.setAttribute("class", "bad");
    await new Promise((resolve) => setTimeout(resolve, wait));
    continue;
  }
}
