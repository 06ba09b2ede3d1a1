// What all pages share: elements, requests with a key, event streams.

/** An element with properties and children. Strings become text nodes; nothing is ever parsed as HTML. */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Shows `text` in the page's notice, or hides it when there is none. */
export function notice(text) {
  const place = byId("notice");
  place.textContent = text || "";
  place.hidden = !text;
}

// ---- The theme --------------------------------------------------------------------------------------

const kTheme = "troupe.theme";
const kThemes = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function offerThemes() {
  const root = document.documentElement;
  const choose = element("select", { id: "theme", ariaLabel: "Theme" }, ...Object.entries(kThemes).map(([value, textContent]) => element("option", { value, textContent })));
  const use = (theme) => { root.dataset.theme = choose.value = theme in kThemes ? theme : ""; };
  try { use(localStorage.getItem(kTheme) || ""); } catch { use(""); }
  choose.addEventListener("change", () => {
    use(choose.value);
    try { localStorage.setItem(kTheme, choose.value); } catch { /* without storage it lasts as long as the page */ }
  });
  window.addEventListener("storage", (event) => { if (event.key === kTheme) use(event.newValue || ""); });
  document.querySelector("header").append(choose);
}
offerThemes();

// ---- The key ----------------------------------------------------------------------------------------

const kKey = "troupe.key";

function storedKey() {
  try { return localStorage.getItem(kKey) || ""; } catch { return ""; }
}
let key = storedKey();
let asking = null;

/** Asks for the key in a dialog. Resolves to true when one was given. Several callers share one dialog. */
export function askForKey(why = "") {
  asking ??= new Promise((resolve) => {
    const input = element("input", { type: "password", autocomplete: "off", ariaLabel: "API key", value: key });
    const keep = element("input", { type: "checkbox", className: "keep" });
    const dialog = element("dialog", { ariaLabel: "API key" },
      element("form", { method: "dialog" },
        element("p", { textContent: why || "The key of this server, as given to it with --api-key." }),
        input,
        element("label", {}, element("span", { className: "row" }, keep, "Keep it in this browser")),
        element("p", { className: "row" }, element("button", { type: "submit", value: "ok", textContent: "Use it" }),
          element("button", { type: "button", textContent: "Cancel", onclick: () => dialog.close("") }))));
    keep.style.width = "auto";
    keep.style.flex = "none";
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "ok";
      if (given) {
        key = input.value.trim();
        try {
          if (keep.checked && key) localStorage.setItem(kKey, key);
          else localStorage.removeItem(kKey);
        } catch { /* without storage it is kept until the page is closed */ }
      }
      dialog.remove();
      asking = null;
      resolve(given && key !== "");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/** Why the server wants another key than `used`; "" when it does not. */
async function whyAnotherKey(response, used) {
  if (response.status === 401) return used ? "The server does not know this key." : "This server asks for an API key (--api-key).";
  if (response.status !== 403) return "";
  const body = await response.clone().json().catch(() => null);
  return body?.error?.code === "admin_key_required" ? "This needs an admin key of the server (--admin-api-key)." : "";
}

/** The server cannot be reached, or its answer broke off. */
export class ServerAway extends Error {
  constructor(text = "The server does not answer. It may have been stopped or is starting.") {
    super(text);
    this.name = "ServerAway";
  }
}

/** Throws what a browser throws for a connection that failed as a ServerAway, whose sentence people understand. */
function explain(problem, text) {
  throw problem instanceof TypeError ? new ServerAway(text) : problem;
}

/** fetch() with the key, which is never asked for. Throws a ServerAway when there is no answer. */
export function requestQuietly(path, options = {}) {
  const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
  return fetch(path, { ...options, headers, cache: "no-store" }).catch((problem) => explain(problem));
}

/** fetch() with the key; asks for one when the server wants it. Throws a ServerAway when there is no answer, and an Error when
    no key is given. */
export async function request(path, options = {}) {
  for (let tries = 0; ; ++tries) {
    const used = key;
    const response = await requestQuietly(path, options);
    const why = await whyAnotherKey(response, used);
    if (!why) return response;
    byId("key").hidden = false;
    if (used !== key) continue;  // another request has been given a key meanwhile
    if (tries > 9 || !await askForKey(why)) throw new Error(response.status === 401 ? "This server asks for an API key." : why);
  }
}

/** The message of an error answer, in whichever form it has. */
export async function problemOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.error?.message || body.message || `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status}, and not with JSON.`;
  }
}

export async function getJson(path) {
  const response = await request(path);
  if (!response.ok) throw new Error(await problemOf(response));
  return response.json();
}

/** Resolves when the server is ready. Rejects when `signal` is aborted. */
export async function serverReady(signal) {
  for (;;) {
    const response = await fetch("/health/ready", { cache: "no-store", signal }).catch(() => null);
    signal?.throwIfAborted();
    if (response?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/** Yields {event, data} for each server-sent event of a response. Throws a ServerAway when it breaks off. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((problem) => explain(problem, "The connection to the server was lost."));
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        let event = "message", data = "";
        for (const line of frame.split("\n")) {
          if (line.startsWith("event: ")) event = line.slice(7);
          else if (line.startsWith("data: ")) data += (data ? "\n" : "") + line.slice(6);
        }
        if (data) yield { event, data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Names the served model in the header; resolves to the models, none when the server does not tell. A server that is away is
    waited for. */
export async function showModel() {
  byId("key").addEventListener("click", () => askForKey());
  byId("key").hidden = !key;
  for (;;) {
    try {
      const models = await getJson("/v1/models");
      byId("model").textContent = models.data?.[0]?.id || "";
      return models.data ?? [];
    } catch (problem) {
      notice(problem.message);
      if (!(problem instanceof ServerAway)) return [];
      await serverReady();
      if (byId("notice").textContent === problem.message) notice("");
    }
  }
}

/** Copies text, also where the page is not a secure context and the clipboard's own interface is missing. False if the browser
    refuses. */
export async function copyText(text) {
  if (navigator.clipboard?.writeText) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed: try the old way */ }
  }
  const area = element("textarea", { value: text, className: "hidden" });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

export function copyButton(textOf, label = "Copy") {
  const button = element("button", { type: "button", textContent: label });
  button.addEventListener("click", async () => {
    button.textContent = await copyText(textOf()) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  });
  return button;
}
