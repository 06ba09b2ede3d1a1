// Asks the server for an answer and follows it. An answer goes on when another chat is opened; what came of it is kept while
// it comes, so a page that is closed or a connection that breaks loses nothing.
import { eventsOf, problemOf, request, serverReady, ServerAway } from "./common.js";
import { parameters } from "./chat_settings.js";
import { keepInHaste, keepMessages, onNews, tell } from "./chat_store.js";

const kKeepEvery = 500;       // ms between two states of an answer in the store
const kTellEvery = 5000;      // ms between two signs of life for the other tabs
const kBelieved = 90_000;     // ms for which a sign of life counts: a browser slows the timers of hidden tabs down to one a minute
const kStarting = [502, 503, 504];

const writing = new Map();    // of this tab: message id → {chat, answer, control}
const elsewhere = new Map();  // of other tabs: message id → when their last sign of life came

/** How many answers this tab is writing. */
export const answersHere = () => writing.size;
export const isWrittenHere = (message) => writing.has(message.id);

/** True if this tab or another one is writing the message. */
export const isWritten = (message) => writing.has(message.id) || Date.now() - (elsewhere.get(message.id) ?? -kBelieved) < kBelieved;

/** True if an answer is being written in the chat by this tab. */
export const isAnswering = (chat) => [...writing.values()].some((one) => one.chat === chat);

/** Ends the answers of this tab in the chat. What came of them stays. */
export function stopIn(chat) {
  for (const one of writing.values()) if (one.chat === chat) one.control.abort();
}

/** Calls `heard(message id)` when another tab begins or ends to write a message. */
export function watchOtherTabs(heard) {
  onNews(({ asks, writes, ends }) => {
    if (asks) for (const id of writing.keys()) tell({ writes: id });
    if (!writes) return;
    if (ends) elsewhere.delete(writes);
    else elsewhere.set(writes, Date.now());
    heard(writes);
  });
  tell({ asks: true });
}
setInterval(() => { for (const id of writing.keys()) tell({ writes: id }); }, kTellEvery);
window.addEventListener("pagehide", () => {
  for (const { chat, answer } of writing.values()) {
    keepInHaste(chat, [chat.messages.get(answer.parent), answer].filter((message) => message));
    tell({ writes: answer.id, ends: true });
  }
});

/** A question's text, or its images and its text. */
function contentOf(message) {
  if (!message.images?.length) return message.content;
  const parts = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return message.content.trim() === "" ? parts : [...parts, { type: "text", text: message.content }];
}

/** Messages as the API takes them. Answers that are empty, and what failed, are left out. */
function conversation(messages, settings) {
  const out = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const message of messages) {
    if (message.role === "assistant") {
      const calls = (message.calls || []).map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      if (message.content === "" && calls.length === 0) continue;
      out.push(calls.length > 0 ? { role: "assistant", content: message.content || null, tool_calls: calls } : { role: "assistant", content: message.content });
    } else if (message.role === "tool") {
      out.push({ role: "tool", tool_call_id: message.call, content: message.content });
    } else {
      out.push({ role: message.role, content: contentOf(message) });
    }
  }
  return out;
}

/** The body of the request for the answer to `before`; with `goesOn` for the rest of that answer. Throws with a sentence about a
    setting that cannot be. */
export function bodyOf(settings, before, goesOn = null) {
  const body = { messages: conversation(before, settings), stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...parameters(settings) };
  if (goesOn) {
    body.messages.push({ role: "assistant", content: goesOn.content });
    Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  }
  return body;
}

function takeDelta(answer, delta) {
  answer.thinking = (answer.thinking || "") + (delta.reasoning_content ?? delta.reasoning ?? "");
  answer.content += delta.content ?? "";
  for (const part of delta.tool_calls || []) {
    answer.calls ??= [];
    const call = (answer.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}

/** Reads one stream into the answer. Throws an Error with `refused` for an answer that is none. */
async function readAnswer(answer, body, signal, changed) {
  const asked = performance.now();
  const tokensBefore = answer.tokens ?? 0, decodeBefore = answer.decode_ms ?? 0;
  let first = 0, finished = false;
  const response = await request("/v1/chat/completions", { method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  answer.request = response.headers.get("x-request-id") || "";
  if (!response.ok) {
    if (kStarting.includes(response.status)) throw new ServerAway(`The server cannot answer now: ${await problemOf(response)}`);
    throw new Error(await problemOf(response));
  }
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") { finished = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const now = performance.now();
    if (chunk.usage) answer.tokens = tokensBefore + chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (choice) {
      if (!first && (choice.delta.content || choice.delta.reasoning_content || choice.delta.tool_calls)) {
        first = now;
        answer.first_ms ??= first - asked;
      }
      takeDelta(answer, choice.delta);
      if (choice.finish_reason === "length") Object.assign(answer, { note: "Cut off: the limit of tokens was reached.", state: "cut" });
    }
    if (first) answer.decode_ms = decodeBefore + now - first;
    changed();
  }
  if (!finished) throw new ServerAway("The connection ended before the answer did.");
}

/** readAnswer(), and once more when the server was away before anything of the answer came and is ready again. */
async function readWithRetry(answer, body, signal, changed) {
  const before = answer.content + (answer.thinking ?? "");
  try {
    await readAnswer(answer, body, signal, changed);
  } catch (problem) {
    if (!(problem instanceof ServerAway) || signal.aborted || answer.content + (answer.thinking ?? "") !== before || answer.calls) throw problem;
    answer.note = `${problem.message} The question is sent again when it is ready.`;
    changed();
    await serverReady(signal);
    answer.note = "";
    await readAnswer(answer, body, signal, changed);
  }
}

/** Writes an answer that is in the chat's tree; settles when it has ended, however it did. `changed` is called after each piece,
    `failed(problem)` when the browser cannot keep it. */
export async function writeAnswer(chat, answer, body, changed, failed) {
  const control = new AbortController();
  writing.set(answer.id, { chat, answer, control });
  Object.assign(answer, { state: "writing", note: "", failed: false });
  tell({ writes: answer.id });
  let kept = 0, keeping = null, full = false;
  const keep = () => keepMessages(answer).catch((problem) => { if (!full) failed(problem); full = true; }).finally(() => { keeping = null; });
  const piece = () => {
    if (!keeping && Date.now() - kept > kKeepEvery) {
      kept = Date.now();
      keeping = keep();
    }
    changed();
  };
  piece();
  try {
    await readWithRetry(answer, body, control.signal, piece);
    if (answer.state === "writing") answer.state = "whole";
  } catch (problem) {
    const stopped = control.signal.aborted;
    Object.assign(answer, { state: "cut", failed: !stopped, note: stopped ? "Stopped." : problem.message });
  }
  writing.delete(answer.id);
  await keeping;
  await keep();
  tell({ writes: answer.id, ends: true });
  changed();
}
