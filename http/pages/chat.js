// The chat page: puts the parts together. Which chats there are and which is open; what happens when a button is pressed.
import { byId, notice, showModel } from "./common.js";
import { answersHere, bodyOf, isAnswering, isWritten, isWrittenHere, stopIn, watchOtherTabs, writeAnswer } from "./chat_answer.js";
import { chosenImages, clearImages, imagesRead, offerImages } from "./chat_images.js";
import { offerExport, offerSearch, showChats } from "./chat_list.js";
import { makeSettings, offerModels, showDefaults, showProblem, showSettings } from "./chat_settings.js";
import { allChats, changeChat, chatOf, forgetChat, keepMessages, messageOf, messagesOf, onNews, openStore, takeHaste } from "./chat_store.js";
import { showStrip } from "./chat_strip.js";
import { addMessage, mergeMessage, newChat, pathOf, siblings } from "./chat_tree.js";
import { ConversationView } from "./chat_view.js";

const kDrawEvery = 40;  // ms between two states of an answer on the page

let chats = [];
let chat = null;
let path = [];   // the messages of the open chat that are shown

const view = new ConversationView((name, ...given) => kActions[name](...given), factsOf);

function factsOf(message) {
  const written = isWritten(message);
  const others = siblings(chat, message);
  const last = path.at(-1) === message;
  return {
    written, place: others.indexOf(message), count: others.length,
    mayGoOn: last && !written && message.role === "assistant" && (message.state === "cut" || message.state === "writing"),
    given: (message.calls || []).map((call) => call.id).filter((id) => path.some((m) => m.role === "tool" && m.call === id)),
  };
}

// ---- Chats ------------------------------------------------------------------------------------------

const couldNotKeep = (problem) => notice(`This browser could not keep the chat (${problem.name || problem}). It stays on this page until that is closed.`);
const change = (one, what) => changeChat(Object.assign(one, what.used ? { used: what.used } : {}), what).catch(couldNotKeep);

function showList() { showChats(chats, chat, isAnswering, (name, ...given) => kListActions[name](...given)); }

function showPath(toTheEnd = true) {
  path = pathOf(chat);
  view.show(path, toTheEnd);
  showAnswering();
}

function showAnswering() {
  const busy = isAnswering(chat);
  byId("stop").hidden = !busy;
  byId("send").hidden = busy;
}

async function openChat(one) {
  chat = one;
  if (one.messages === null) {
    const found = await messagesOf(one.id).catch(() => []);
    one.messages ??= new Map(found.map((message) => [message.id, message]));
    if (chat !== one) return;  // another was opened meanwhile
  }
  showSettings(chat.settings);
  showList();
  showPath();
  byId("question").focus();
}

function dropChat(one) {
  stopIn(one);
  chats = chats.filter((other) => other !== one);
  if (chats.length === 0) chats = [newChat()];
  if (one === chat) openChat(chats[0]);
  else showList();
}

const kListActions = {
  open: openChat,
  rename(one, title) {
    if (title !== one.title) {
      Object.assign(one, { title, named: true });
      change(one, { title, named: true });
    }
    showList();
  },
  async remove(one) {
    if (!one.fresh && !confirm(`Delete the chat "${one.title}"?`)) return;
    dropChat(one);
    await forgetChat(one.id).catch((problem) => notice(`The chat could not be deleted: ${problem}`));
  },
};

// ---- Asking -----------------------------------------------------------------------------------------

/** The body of a request, or null with a sentence about what stands against it. */
function checkedBody(before, goesOn) {
  if (before.some(isWritten) || (goesOn && isWritten(goesOn))) {
    notice("An answer of this chat is still being written, here or in another tab. Ask again when it has ended.");
    return null;
  }
  try {
    const body = bodyOf(chat.settings, before, goesOn);
    notice("");
    return body;
  } catch (problem) {
    notice(problem.message);
    byId("side").open = byId("settings").open = true;
    return null;
  }
}

/** Adds an answer after the last of `before`, or takes `goesOn`, and writes it. */
async function write(before, body, goesOn = null) {
  const own = chat;
  const answer = goesOn ?? addMessage(own, before.at(-1), { role: "assistant", content: "" });
  if (!goesOn) change(own, { chosen: { [answer.parent]: answer.id } });
  let drawn = 0;
  const draw = () => { drawn = 0; if (own === chat) view.refresh(answer); };
  const ended = writeAnswer(own, answer, body, () => { drawn ||= setTimeout(draw, kDrawEvery); }, couldNotKeep);
  if (own === chat) showPath();
  showList();
  await ended;
  clearTimeout(drawn);
  showList();
  if (own !== chat) return;
  showAnswering();
  view.refreshAll();
  view.refresh(answer);
}

/** Asks a question after the message `parent`; null: as the first. False, with a sentence, when it cannot be asked as it is. */
function ask(parent, text, images) {
  const question = images.length > 0 ? { role: "user", content: text, images } : { role: "user", content: text };
  const before = parent ? path.slice(0, path.indexOf(parent) + 1) : [];
  const body = checkedBody([...before, { ...question, id: "" }]);
  if (!body) return false;
  const own = chat;
  const message = addMessage(own, parent, question);
  const first = own.fresh || own.title === "New chat";
  if (first && !own.named) own.title = text.trim().split("\n")[0].slice(0, 60) || "Image";
  change(own, { used: Date.now(), title: own.title, chosen: { [message.parent]: message.id } });
  keepMessages(message).catch(couldNotKeep);
  write([...before, message], body);
  return true;
}

const kActions = {
  askAgain(message, text, images) {
    stopIn(chat);
    const asked = ask(chat.messages.get(message.parent) ?? null, text, images);
    if (asked) byId("question").focus();
    return asked;
  },
  async regenerate(message) {
    stopIn(chat);
    const before = path.slice(0, path.indexOf(message));
    const body = checkedBody(before);
    if (body) await write(before, body);
  },
  async goOn(message) {
    // Without a word of the answer there is nothing that could go on: it is asked for once more.
    if (message.content === "" || message.calls) return kActions.regenerate(message);
    const before = path.slice(0, path.indexOf(message));
    const body = checkedBody(before, message);
    if (body) await write(before, body, message);
  },
  turn(message, by) {
    const others = siblings(chat, message);
    const other = others[others.indexOf(message) + by];
    if (!other) return;
    chat.chosen[message.parent] = other.id;
    change(chat, { chosen: { [message.parent]: other.id } });
    showPath(false);
  },
  async giveResult(message, call, content) {
    const result = addMessage(chat, path.at(-1), { role: "tool", call: call.id, content });
    change(chat, { chosen: { [result.parent]: result.id } });
    keepMessages(result).catch(couldNotKeep);
    showPath();
    const given = (one) => path.some((m) => m.role === "tool" && m.call === one.id);
    if (!message.calls.every(given)) return;
    const before = [...path];
    const body = checkedBody(before);
    if (body) await write(before, body);
  },
};

async function submit() {
  await imagesRead();
  const question = byId("question");
  const images = chosenImages();
  if ((question.value.trim() === "" && images.length === 0) || isAnswering(chat) || chat.messages === null) return;
  if (!ask(path.at(-1) ?? null, question.value, images)) return;
  clearImages();
  question.value = "";
}

// ---- Other tabs -------------------------------------------------------------------------------------

async function hear({ chat: id, message: messageId, gone }) {
  if (gone) {
    const lost = chats.find((one) => one.id === gone);
    if (lost) dropChat(lost);
    return;
  }
  if (!id) return;
  let own = chats.find((one) => one.id === id);
  if (messageId) {
    if (!own?.messages || isWrittenHere({ id: messageId })) return;
    const message = await messageOf(messageId).catch(() => null);
    if (!message) return;
    const isNew = !own.messages.has(messageId);
    if (!mergeMessage(own, message) || own !== chat) return;
    if (isNew) showPath(false);
    else view.refresh(own.messages.get(messageId));
    return;
  }
  const kept = await chatOf(id).catch(() => null);
  own = chats.find((one) => one.id === id);
  if (!kept) return;
  if (!own) chats.unshift(kept);
  else {
    Object.assign(own, { title: kept.title, named: kept.named, used: kept.used, settings: kept.settings });
    if (own === chat && !byId("settings").contains(document.activeElement)) showSettings(chat.settings);
  }
  showList();
}

// ---- Start ------------------------------------------------------------------------------------------

byId("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stopIn(chat); });
byId("stop").addEventListener("click", () => { stopIn(chat); byId("question").focus(); });
byId("new").addEventListener("click", () => {
  const empty = chats.find((one) => one.fresh);
  if (!empty) chats.unshift(newChat());
  openChat(empty || chats[0]);
});
makeSettings((name, value) => {
  chat.settings[name] = value;
  if (showProblem(chat.settings)) notice("");
  change(chat, { settings: { [name]: value } });
});
offerSearch(showList);
offerExport(async () => {
  for (const one of await allChats()) if (!chats.some((other) => other.id === one.id)) chats.push(one);
  chats.sort((a, b) => b.used - a.used);
  if (chat.messages) for (const message of await messagesOf(chat.id)) mergeMessage(chat, message);
  showList();
  showPath(false);
});
if (matchMedia("(max-width: 44rem)").matches) byId("side").open = false;

const kept = await openStore();
await takeHaste().catch(couldNotKeep);
chats = await allChats();
if (chats.length === 0) chats = [newChat()];
onNews(hear);
watchOtherTabs((id) => {
  const message = chat?.messages?.get(id);
  if (message) view.refreshAll();
});
await openChat(chats[0]);
if (!kept) notice("This browser keeps no data for this page, or another tab has an older version of it open: chats are lost when it is closed.");
const cards = await showModel();
const card = cards[0] ?? null;
offerModels(cards);
if (chat) showSettings(chat.settings);
offerImages(card);
showDefaults(card);
if (card) showStrip(answersHere);
