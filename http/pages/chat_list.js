// The list of chats: titles, search, export and import.
import { byId, element, notice } from "./common.js";
import { allChats, changeChat, chatsWith, keepMessages, messagesOf } from "./chat_store.js";
import { fromList, isChat, isMessage, newChat, newId } from "./chat_tree.js";

const kFormat = "troupe-chats";
let found = null;  // the ids of the chats that a search has found in messages; null: no search

/** Shows the chats that match the search. `act(name, chat, ...)` opens, renames and deletes. */
export function showChats(chats, current, isBusy, act) {
  const wanted = byId("search").value.trim().toLowerCase();
  const matches = (one) => wanted === "" || one.title.toLowerCase().includes(wanted) || found?.has(one.id);
  const some = chats.filter(matches);
  byId("chats").replaceChildren(...some.map((one) => {
    const open = element("button", { type: "button", textContent: one.title, title: one.title, onclick: () => act("open", one) });
    if (one === current) open.setAttribute("aria-current", "true");
    const item = element("li", {}, open);
    if (isBusy(one)) item.append(element("span", { className: "busy", role: "img", ariaLabel: "an answer is being written", title: "An answer is being written" }));
    item.append(element("button", { type: "button", textContent: "✎", title: "Rename", ariaLabel: `Rename the chat ${one.title}`, onclick: () => rename(item, one, act) }),
      element("button", { type: "button", textContent: "×", title: "Delete", ariaLabel: `Delete the chat ${one.title}`, onclick: () => act("remove", one) }));
    return item;
  }));
  byId("none-found").hidden = some.length > 0;
}

function rename(item, one, act) {
  const field = element("input", { value: one.title, maxLength: 200, ariaLabel: "Title of the chat" });
  let ended = false;
  const end = (title) => {
    if (ended) return;
    ended = true;
    act("rename", one, title.trim() || one.title);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) end(field.value);
    if (event.key === "Escape") { event.stopPropagation(); end(one.title); }
  });
  field.addEventListener("blur", () => end(field.value));
  item.replaceChildren(field);
  field.select();
}

/** Looks for what stands in the search field in all messages; `show` is called when the list has to be drawn again. */
export function offerSearch(show) {
  byId("search").addEventListener("input", async () => {
    const wanted = byId("search").value.trim();
    found = null;
    show();
    if (wanted === "") return;
    const some = await chatsWith(wanted).catch(() => new Set());
    if (byId("search").value.trim() !== wanted) return;
    found = some;
    show();
  });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || byId("search").value === "") return;
    event.stopPropagation();
    byId("search").value = "";
    byId("search").dispatchEvent(new Event("input"));
  });
}

// ---- Export and import ------------------------------------------------------------------------------

async function exported() {
  const chats = await allChats();
  const whole = await Promise.all(chats.map(async ({ messages, fresh, ...one }) => ({ ...one, messages: await messagesOf(one.id) })));
  return JSON.stringify({ format: kFormat, version: 1, chats: whole }, null, 1);
}

function download(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = element("a", { href: address, download: `troupe-chats-${new Date().toISOString().slice(0, 10)}.json`, className: "hidden" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** {chats: [{chat, messages}], left: how many are none} of an exported text. Throws with a sentence when it is none. */
function read(text) {
  let document;
  try { document = JSON.parse(text); } catch { throw new Error("This file is no JSON."); }
  if (document?.format !== kFormat || !Array.isArray(document.chats)) throw new Error(`This file holds no chats: it should have "format": "${kFormat}" and a list "chats".`);
  if (document.version !== 1) throw new Error(`This file has version ${JSON.stringify(document.version)} of the format; version 1 can be read.`);
  const chats = document.chats.map((value) => {
    const { messages, ...chat } = value ?? {};
    const sound = isChat(chat) && Array.isArray(messages) && messages.every((m) => isMessage(m) && m.chat === chat.id);
    return sound ? { chat, messages } : fromList(value);
  });
  const sound = chats.filter((one) => one !== null);
  return { chats: sound, left: chats.length - sound.length };
}

/** Adds the chats of an exported text to those of the browser. A chat that is here already gets what it lacks. */
export async function importChats(text) {
  const { chats, left } = read(text);
  const known = new Set((await allChats()).map((one) => one.id));
  for (const { chat, messages } of chats) {
    const { id, title, named, used, settings, chosen } = chat;
    const own = new Map((known.has(id) ? await messagesOf(id) : []).map((m) => [m.id, m]));
    const target = { ...newChat(), id: id || newId(), fresh: !known.has(id) };
    await changeChat(target, known.has(id) ? {} : { title, named: named === true, used: Number(used) || 0, settings, chosen });
    const news = messages.filter((m) => (own.get(m.id)?.rev ?? -1) < (m.rev ?? 0));
    if (news.length > 0) await keepMessages(...news);
  }
  return `${chats.length} ${chats.length === 1 ? "chat was" : "chats were"} read${left > 0 ? `; ${left} could not be read and were left out` : ""}.`;
}

/** `changed` is called when chats were added. */
export function offerExport(changed) {
  byId("export").addEventListener("click", () => exported().then(download).catch((problem) => notice(`The chats could not be exported: ${problem.message}`)));
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async ({ target }) => {
    const file = target.files[0];
    if (!file) return;
    try {
      const said = await importChats(await file.text());
      await changed();
      notice(said);
    } catch (problem) {
      notice(problem.message);
    }
    target.value = "";  // the same file can be chosen again
  });
}
