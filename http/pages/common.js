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

/** fetch() with the key; asks for one when the server wants it. Throws as fetch() does, also when the question is declined. */
export async function request(path, options = {}) {
  for (let tries = 0; ; ++tries) {
    const used = key;
    const headers = { ...options.headers };
    if (used) headers.Authorization = `Bearer ${used}`;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
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

/** Yields {event, data} for each server-sent event of a response. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
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

/** Names the served model in the header; resolves to the model, or to null when it cannot be had. */
export async function showModel() {
  byId("key").addEventListener("click", () => askForKey());
  byId("key").hidden = !key;
  try {
    const models = await getJson("/v1/models");
    const model = models.data?.[0] || null;
    byId("model").textContent = model?.id || "";
    return model;
  } catch (problem) {
    notice(problem.message);
    return null;
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
