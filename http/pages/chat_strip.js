// The strip under the chat: what the server does now, from /v1/troupe/events. It takes a connection only while the page is seen
// and few answers are written, since a browser opens six to a server. Where the key does not open it there is no strip.
import { byId, element, eventsOf, requestQuietly, serverReady, ServerAway } from "./common.js";

const kMostAnswers = 3;  // beside which the strip has a connection

function show(state, before) {
  const figure = (name, value) => element("span", {}, `${name} `, element("b", { textContent: value }));
  const queue = (name) => state.server?.queues.find((one) => one.name === name)?.depth ?? 0;
  const seconds = before ? (state.t_ms - before.t_ms) / 1000 : 0;
  const tokens = before ? state.tokens.generated - before.tokens.generated : 0;
  const rate = seconds > 0 && tokens >= 0 ? tokens / seconds : 0;
  const blocks = state.server?.kv_blocks ?? {};
  const used = blocks.total > 0 ? 100 * (blocks.leased || 0) / blocks.total : 0;
  byId("strip").replaceChildren(figure("server", state.server?.state ?? state.state), figure("running", String(queue("running"))),
    figure("waiting", String(queue("waiting"))), figure("tokens/s", rate.toFixed(1)), figure("KV in use", `${used.toFixed(0)} %`));
}

const seen = () => document.visibilityState === "visible";
const change = () => new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Shows the strip as long as the page lives. `answers()`: how many are being written. */
export async function showStrip(answers) {
  for (;;) {
    while (!seen()) await change();
    while (answers() > kMostAnswers) await pause(1000);
    const control = new AbortController();
    const watch = setInterval(() => { if (!seen() || answers() > kMostAnswers) control.abort(); }, 500);
    try {
      const response = await requestQuietly("/v1/troupe/events", { signal: control.signal });
      if (response.status === 401 || response.status === 403) break;
      if (!response.ok) throw new ServerAway();
      let before = null;
      for await (const { event, data } of eventsOf(response)) {
        if (event !== "state") continue;
        const state = JSON.parse(data);
        byId("strip").hidden = false;
        show(state, before);
        before = state;
      }
    } catch (problem) {
      if (problem instanceof ServerAway) byId("strip").replaceChildren("The server does not answer.");
    } finally {
      clearInterval(watch);
    }
    await pause(1000);
    await serverReady();
  }
  byId("strip").hidden = true;
}
