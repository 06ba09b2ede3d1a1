// The chats of this browser, in its IndexedDB, and the news between tabs. Chats and messages are kept apart, and every change is
// one transaction that touches nothing else: what two tabs do to a chat adds up. Where the database cannot be used everything
// lives as long as the page.
import { fromList, isChat, isMessage } from "./chat_tree.js";

const kChats = "chats", kMessages = "messages";
let database = null;
let memory = null;  // instead of the database: {chats, messages}, Maps by id
const channel = "BroadcastChannel" in window ? new BroadcastChannel("troupe.chats") : null;

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

/** Gives the messages of chats that an older page kept a store of their own. What is no chat of this program stays as it is. */
function upgrade({ result: opened, transaction }, version) {
  if (version < 1) opened.createObjectStore(kChats, { keyPath: "id" });
  opened.createObjectStore(kMessages, { keyPath: "id" }).createIndex("chat", "chat");
  transaction.objectStore(kChats).openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const old = fromList(cursor.value);
    if (old) {
      for (const message of old.messages) transaction.objectStore(kMessages).put(message);
      cursor.update(old.chat);
    }
    cursor.continue();
  };
}

/** True when chats are kept beyond this page. */
export async function openStore() {
  try {
    const request = indexedDB.open("troupe", 2);
    request.onupgradeneeded = (event) => upgrade(request, event.oldVersion);
    database = await done(request);
    database.onversionchange = () => database.close();
    return true;
  } catch {
    memory = { chats: new Map(), messages: new Map() };
    return false;
  }
}

/** Runs `work` with the stores of one transaction; resolves to its result when all of it is kept. */
function inTransaction(mode, work) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction([kChats, kMessages], mode);
    let result;
    transaction.oncomplete = () => resolve(result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("The browser kept nothing."));
    work(transaction.objectStore(kChats), transaction.objectStore(kMessages), (value) => { result = value; });
  });
}

const asShown = (chat) => ({ named: false, used: 0, ...chat, messages: null });

/** Every chat without its messages, the last used first. */
export async function allChats() {
  const all = memory ? [...memory.chats.values()] : await done(database.transaction(kChats).objectStore(kChats).getAll());
  return all.filter(isChat).map(asShown).sort((a, b) => b.used - a.used);
}

/** The chat without its messages, or null. */
export async function chatOf(id) {
  const found = memory ? memory.chats.get(id) : await done(database.transaction(kChats).objectStore(kChats).get(id));
  return isChat(found) ? asShown(found) : null;
}

/** The messages of a chat. */
export async function messagesOf(id) {
  const all = memory ? [...memory.messages.values()].filter((m) => m.chat === id)
    : await done(database.transaction(kMessages).objectStore(kMessages).index("chat").getAll(id));
  return all.filter(isMessage);
}

export async function messageOf(id) {
  const found = memory ? memory.messages.get(id) : await done(database.transaction(kMessages).objectStore(kMessages).get(id));
  return isMessage(found) ? found : null;
}

/** The ids of the chats in whose messages `text` occurs, in any case. */
export async function chatsWith(text) {
  const found = new Set();
  const wanted = text.toLowerCase();
  const look = (m) => { if (!found.has(m.chat) && typeof m.content === "string" && m.content.toLowerCase().includes(wanted)) found.add(m.chat); };
  if (memory) {
    for (const message of memory.messages.values()) look(message);
  } else {
    await inTransaction("readonly", (_, messages) => {
      messages.openCursor().onsuccess = ({ target: { result: cursor } }) => { if (cursor) { look(cursor.value); cursor.continue(); } };
    });
  }
  return found;
}

function patched(kept, chat, change) {
  const { messages, fresh, ...own } = chat;
  const base = kept ?? own;
  return { ...base, ...change, settings: { ...base.settings, ...change.settings }, chosen: { ...base.chosen, ...change.chosen } };
}

/** Keeps the fields in `change` of a chat, of settings and chosen those that are named. A chat that another tab has deleted stays
    deleted. Rejects when the browser has no room. */
export async function changeChat(chat, change) {
  const fresh = chat.fresh;
  chat.fresh = false;
  const put = (kept, keep) => { if (kept || fresh) keep(structuredClone(patched(kept, chat, change))); };
  if (memory) put(memory.chats.get(chat.id), (value) => memory.chats.set(chat.id, value));
  else {
    await inTransaction("readwrite", (chats) => {
      chats.get(chat.id).onsuccess = ({ target }) => put(target.result, (value) => chats.put(value));
    }).catch((problem) => { chat.fresh = fresh; throw problem; });
  }
  tell({ chat: chat.id });
}

/** Keeps messages of a chat, and says so to the other tabs. One whose kept state is newer stays. */
export async function keepMessages(...messages) {
  const copies = messages.map((message) => { message.rev = (message.rev ?? 0) + 1; return structuredClone(message); });
  if (memory) {
    for (const copy of copies) memory.messages.set(copy.id, copy);
    return;
  }
  await inTransaction("readwrite", (chats, store) => {
    for (const copy of copies) {
      chats.getKey(copy.chat).onsuccess = ({ target }) => {
        if (target.result === undefined) return;  // deleted by another tab
        store.get(copy.id).onsuccess = ({ target: { result: kept } }) => { if (!kept || (kept.rev ?? 0) <= copy.rev) store.put(copy); };
      };
    }
  });
  for (const { id, chat } of copies) tell({ chat, message: id });
}

const kHaste = "troupe.haste.";

/** Keeps messages of a chat when the page is about to end, which may be before a transaction does. takeHaste() puts them into the
    store when a page is opened. Messages for which there is no room are left out. */
export function keepInHaste(chat, messages) {
  const { messages: others, fresh, ...own } = chat;
  try { localStorage.setItem(kHaste + messages.at(-1).id, JSON.stringify({ chat: own, messages })); } catch { /* no room, or not allowed */ }
}

/** Takes what pages that ended have kept in haste into the store. */
export async function takeHaste() {
  let keys = [];
  try { keys = Object.keys(localStorage).filter((key) => key.startsWith(kHaste)); } catch { /* not allowed: there is nothing */ }
  for (const key of keys) {
    const { chat, messages } = JSON.parse(localStorage.getItem(key)) ?? {};
    localStorage.removeItem(key);
    if (!isChat(chat) || !Array.isArray(messages) || !messages.every(isMessage)) continue;
    await changeChat({ ...chat, fresh: true }, { used: chat.used, chosen: chat.chosen });
    await keepMessages(...messages);
  }
}

export async function forgetChat(id) {
  if (memory) {
    memory.chats.delete(id);
    for (const message of [...memory.messages.values()]) if (message.chat === id) memory.messages.delete(message.id);
    return;
  }
  await inTransaction("readwrite", (chats, messages) => {
    chats.delete(id);
    messages.index("chat").openKeyCursor(id).onsuccess = ({ target: { result: cursor } }) => {
      if (cursor) { messages.delete(cursor.primaryKey); cursor.continue(); }
    };
  });
  tell({ gone: id });
}

/** To the other tabs: {chat} has changed, {chat, message} has, {gone: a chat}, {asks: true}, {writes: a message's id, ends: bool}. */
export function tell(news) { channel?.postMessage(news); }

/** Calls `hear` with the news of other tabs. */
export function onNews(hear) { channel?.addEventListener("message", ({ data }) => hear(data)); }
