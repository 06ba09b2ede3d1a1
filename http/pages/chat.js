// The chat page. A chat is {id, title, used, settings, messages}; a message {role, content, images, thinking, calls, note, ...}.
import { byId, copyButton, element, eventsOf, notice, problemOf, request, showModel } from "./common.js";
import { markdown } from "./markdown.js";
import { hasImages, imageRow, imagesRead, offerImages, takeImages } from "./chat_images.js";
import { allChats, forgetChat, keepChat, newChat, openStore } from "./chat_store.js";

const kNumbers = { temperature: [0, 2], top_p: [0, 1], max_tokens: [1, 2 ** 31 - 1], seed: [0, 2 ** 53 - 1] };
const kWholeNumbers = ["max_tokens", "seed"];

let chats = [];
let chat = null;
let answering = null;  // the AbortController of the answer that is being written

// ---- Chats ------------------------------------------------------------------------------------------

async function keep() {
  chat.used = Date.now();
  try {
    await keepChat(chat);
  } catch (problem) {
    notice(`This browser could not keep the chat (${problem.name || problem}). It stays on this page until that is closed.`);
  }
}

function showChats() {
  byId("chats").replaceChildren(...chats.map((one) => {
    const open = element("button", { type: "button", textContent: one.title, title: one.title, onclick: () => openChat(one) });
    if (one === chat) open.setAttribute("aria-current", "true");
    const forget = element("button", { type: "button", textContent: "×", title: "Delete", ariaLabel: `Delete the chat ${one.title}` });
    forget.addEventListener("click", () => removeChat(one));
    return element("li", {}, open, forget);
  }));
}

function openChat(one) {
  stop();
  chat = one;
  for (const name of ["system", "thinking", "tools", ...Object.keys(kNumbers)]) byId(name).value = chat.settings[name] ?? "";
  byId("settings-problem").hidden = true;
  showChats();
  showMessages();
  byId("question").focus();
}

async function removeChat(one) {
  if (one.messages.length > 0 && !confirm(`Delete the chat "${one.title}"?`)) return;
  chats = chats.filter((other) => other !== one);
  await forgetChat(one.id).catch((problem) => notice(`The chat could not be deleted: ${problem}`));
  if (chats.length === 0) chats = [newChat()];
  if (one === chat) openChat(chats[0]);
  else showChats();
}

// ---- Settings ---------------------------------------------------------------------------------------

/** What the settings add to a request; throws with a sentence about the one that cannot be. */
function parameters() {
  const out = {};
  for (const [name, [low, high]] of Object.entries(kNumbers)) {
    const field = byId(name);
    const text = String(chat.settings[name] ?? "").trim();
    if (field.validity.badInput) throw new Error(`${name}: this is not a number.`);
    if (text === "") continue;
    const value = Number(text);
    if (!Number.isFinite(value) || value < low || value > high || (kWholeNumbers.includes(name) && !Number.isInteger(value))) {
      throw new Error(`${name}: got ${text}, expected a ${kWholeNumbers.includes(name) ? "whole " : ""}number from ${low} to ${high}.`);
    }
    out[name] = value;
  }
  if (chat.settings.thinking) out.chat_template_kwargs = { enable_thinking: chat.settings.thinking === "on" };
  if (chat.settings.tools?.trim()) {
    try { out.tools = JSON.parse(chat.settings.tools); } catch (problem) { throw new Error(`Tools: ${problem.message}`); }
  }
  return out;
}

function settingChanged(event) {
  chat.settings[event.target.id] = event.target.value;
  let problem = "";
  try { parameters(); } catch (caught) { problem = caught.message; }
  byId("settings-problem").textContent = problem;
  byId("settings-problem").hidden = problem === "";
  keep();
}

// ---- Asking -----------------------------------------------------------------------------------------

/** A question's text, or its images and its text. */
function contentOf(message) {
  if (!message.images?.length) return message.content;
  const parts = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return message.content.trim() === "" ? parts : [...parts, { type: "text", text: message.content }];
}

/** The conversation as the API takes it. Answers that are empty, and what failed, are left out. */
function conversation() {
  const out = chat.settings.system?.trim() ? [{ role: "system", content: chat.settings.system }] : [];
  for (const message of chat.messages) {
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

async function readAnswer(answer, body, signal, changed) {
  const asked = performance.now();
  let first = 0, finished = false;
  const response = await request("/v1/chat/completions", { method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  answer.request = response.headers.get("x-request-id") || "";
  if (!response.ok) throw new Error(await problemOf(response));
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") { finished = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const now = performance.now();
    if (chunk.usage) answer.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (choice) {
      if (!first && (choice.delta.content || choice.delta.reasoning_content || choice.delta.tool_calls)) {
        first = now;
        answer.first_ms = first - asked;
      }
      takeDelta(answer, choice.delta);
      if (choice.finish_reason === "length") answer.note = "Cut off: the limit of tokens was reached.";
    }
    if (first) answer.decode_ms = now - first;
    changed();
  }
  if (!finished) throw new Error("The connection ended before the answer did.");
}

async function ask() {
  stop();
  let body;
  try {
    body = { messages: conversation(), stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...parameters() };
  } catch (problem) {
    notice(problem.message);
    return;
  }
  notice("");
  const own = chat;
  const answer = { role: "assistant", content: "" };
  chat.messages.push(answer);
  const control = answering = new AbortController();
  const article = messageElement(answer);
  byId("messages").append(article);
  showAnswering();
  scrollDown(true);
  let drawn = 0;
  const draw = () => {
    drawn = 0;
    if (own === chat) refresh(article, answer);
  };
  try {
    // A long text takes longer to draw: it is drawn less often.
    await readAnswer(answer, body, control.signal, () => { drawn ||= setTimeout(draw, answer.content.length < 20000 ? 40 : 400); });
  } catch (problem) {
    answer.note = problem.name === "AbortError" ? "Stopped." : problem.message;
    answer.failed = problem.name !== "AbortError";
  }
  clearTimeout(drawn);
  if (answering === control) answering = null;
  showAnswering();
  if (own === chat) {
    refresh(article, answer);
    await keep();
  } else if (chats.includes(own)) {
    await keepChat(own).catch(() => {});
  }
}

function stop() { answering?.abort(); answering = null; showAnswering(); }

function showAnswering() {
  byId("stop").hidden = !answering;
  byId("send").hidden = Boolean(answering);
}

async function send(text, images) {
  chat.messages.push(images.length > 0 ? { role: "user", content: text, images } : { role: "user", content: text });
  if (chat.title === "New chat") chat.title = text.trim().split("\n")[0].slice(0, 60) || "Image";
  showChats();
  showMessages();
  await keep();
  await ask();
}

// ---- Messages ---------------------------------------------------------------------------------------

function isNearEnd() {
  const log = byId("messages");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 120;
}
function scrollDown(always) {
  const log = byId("messages");
  if (always) log.scrollTop = log.scrollHeight;
}

function refresh(article, message) {
  const follow = isNearEnd();
  const thoughts = article.querySelector("details.thinking")?.open;
  const fresh = messageElement(message);
  if (thoughts) fresh.querySelector("details.thinking").open = true;
  article.replaceChildren(...fresh.childNodes);
  scrollDown(follow);
}

function showMessages() {
  byId("messages").replaceChildren(...chat.messages.map(messageElement));
  scrollDown(true);
}

const kNames = { user: "You", assistant: "Answer", tool: "Result of a tool" };

function messageElement(message) {
  const article = element("article", { className: message.role }, element("p", { className: "who", textContent: kNames[message.role] || message.role }));
  if (message.thinking) {
    const thinking = element("details", { className: "thinking" }, element("summary", { textContent: message.content ? "Thoughts" : "Thinking…" }), markdown(message.thinking));
    article.append(thinking);
  }
  if (message.images?.length) article.append(element("div", { className: "images" }, ...imageRow(message.images)));
  const body = element("div", { className: "body" });
  if (message.role === "assistant") body.append(markdown(message.content));
  else body.textContent = message.content;
  article.append(body);
  for (const call of message.calls || []) article.append(callElement(call, message));
  if (message.note) article.append(element("p", { className: message.failed ? "problem" : "quiet", textContent: message.note }));
  article.append(toolsOf(message));
  return article;
}

function callElement(call, message) {
  let shown = call.arguments;
  try { shown = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* still being written, or cut */ }
  const box = element("div", { className: "call" }, element("strong", { textContent: `Call of ${call.name}` }), element("pre", {}, element("code", { textContent: shown })));
  const open = !chat.messages.some((m) => m.role === "tool" && m.call === call.id);
  if (open && !answering) {
    const result = element("textarea", { rows: 2, ariaLabel: `Result of ${call.name}`, placeholder: "Its result, as the model should see it" });
    const give = element("button", { type: "button", textContent: "Give the result" });
    give.addEventListener("click", async () => {
      chat.messages.push({ role: "tool", call: call.id, content: result.value });
      showMessages();
      await keep();
      const given = (one) => chat.messages.some((m) => m.role === "tool" && m.call === one.id);
      if (message.calls.every(given)) await ask();
    });
    box.append(result, give);
  }
  return box;
}

function figuresOf(message) {
  const parts = [];
  if (message.tokens) parts.push(`${message.tokens} tokens`);
  if (message.tokens > 1 && message.decode_ms > 0) parts.push(`${((message.tokens - 1) / message.decode_ms * 1000).toFixed(1)} tokens/s`);
  if (message.first_ms) parts.push(`first after ${(message.first_ms / 1000).toFixed(2)} s`);
  return parts.join(" · ");
}

function toolsOf(message) {
  const bar = element("div", { className: "tools" }, copyButton(() => message.content));
  if (message.role === "user") {
    bar.append(element("button", { type: "button", textContent: "Edit", onclick: () => edit(message, bar.parentElement) }));
  } else if (message.role === "assistant") {
    bar.append(element("button", { type: "button", textContent: "Regenerate", onclick: () => cutFrom(message).then(ask) }));
    bar.append(element("span", { className: "figures-of-answer", textContent: figuresOf(message) }));
    if (message.request) bar.append(element("a", { href: `/topology#${encodeURIComponent(message.request)}`, textContent: "its way" }));
  }
  return bar;
}

/** Removes the message and what follows it. */
async function cutFrom(message) {
  stop();
  chat.messages.splice(chat.messages.indexOf(message));
  showMessages();
  await keep();
}

function edit(message, article) {
  const area = element("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1), ariaLabel: "Question" });
  const row = element("div", { className: "images" });
  let images = message.images || [];
  const showRow = () => row.replaceChildren(...imageRow(images, (i) => { images = images.filter((_, other) => other !== i); showRow(); }));
  showRow();
  const save = element("button", { type: "button", textContent: "Ask again" });
  save.addEventListener("click", async () => {
    if (area.value.trim() === "" && images.length === 0) return;
    await cutFrom(message);
    await send(area.value, images);
  });
  const cancel = element("button", { type: "button", textContent: "Cancel", onclick: () => refresh(article, message) });
  article.replaceChildren(row, area, element("div", { className: "tools" }, save, cancel));
  area.focus();
}

// ---- Start ------------------------------------------------------------------------------------------

async function submit() {
  await imagesRead();
  const question = byId("question");
  const text = question.value;
  if ((text.trim() === "" && !hasImages()) || answering) return;
  question.value = "";
  send(text, takeImages());
}

byId("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && answering) stop(); });
byId("stop").addEventListener("click", () => { stop(); byId("question").focus(); });
byId("new").addEventListener("click", () => {
  const empty = chats.find((one) => one.messages.length === 0);
  if (!empty) chats.unshift(newChat());
  openChat(empty || chats[0]);
});
for (const name of ["system", "thinking", "tools", ...Object.keys(kNumbers)]) byId(name).addEventListener("change", settingChanged);
if (matchMedia("(max-width: 44rem)").matches) byId("side").open = false;

const kept = await openStore();
chats = await allChats();
if (chats.length === 0) chats = [newChat()];
openChat(chats[0]);
if (!kept) notice("This browser keeps no data for this page: chats are lost when it is closed.");
offerImages(await showModel());
