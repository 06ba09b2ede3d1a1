// The chats of this browser, in its IndexedDB. Where that cannot be used they live as long as the page.

const kStore = "chats";
let database = null;
let memory = null;  // instead of the database

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

/** True when chats are kept beyond this page. */
export async function openStore() {
  try {
    const request = indexedDB.open("troupe", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(kStore, { keyPath: "id" });
    database = await done(request);
    return true;
  } catch {
    memory = new Map();
    return false;
  }
}

const store = (mode) => database.transaction(kStore, mode).objectStore(kStore);

const areTexts = (list) => Array.isArray(list) && list.every((text) => typeof text === "string");

/** True for what a chat of this program looks like; anything else that lies in the store is left alone and not shown. */
function isChat(value) {
  return typeof value === "object" && value !== null && typeof value.id === "string" && Array.isArray(value.messages) &&
    value.messages.every((m) => typeof m === "object" && m !== null && typeof m.role === "string" && typeof m.content === "string" &&
      (m.images === undefined || areTexts(m.images)));
}

/** Every chat, the last used first. */
export async function allChats() {
  const all = memory ? [...memory.values()] : await done(store("readonly").getAll());
  return all.filter(isChat).sort((a, b) => (b.used || 0) - (a.used || 0));
}

/** Rejects when the browser has no room; the chat stays on the page. */
export async function keepChat(chat) {
  const copy = structuredClone(chat);
  if (memory) memory.set(copy.id, copy);
  else await done(store("readwrite").put(copy));
}

export async function forgetChat(id) {
  if (memory) memory.delete(id);
  else await done(store("readwrite").delete(id));
}

export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(4)).join("-"), title: "New chat", used: Date.now(), settings: {}, messages: [] };
}
