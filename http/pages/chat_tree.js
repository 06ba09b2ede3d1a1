// The messages of a chat as a tree. A message is {id, chat, parent, born, rev, role, content, images, thinking, calls, call, state,
// note, ...}; `parent` is the id of the message before it, "" of the first one. Nothing is taken out of the tree: an edited
// question or another answer is a branch beside the first. So the trees of two tabs always have a union.

export const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((word) => word.toString(36)).join("-");

/** {id, title, named, used, settings, chosen, messages}. `chosen` says which child of a message is shown; `messages` is a Map by
    id, or null as long as the store was not asked. */
export function newChat() {
  return { id: newId(), title: "New chat", named: false, used: Date.now(), settings: {}, chosen: {}, messages: new Map(), fresh: true };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const areTexts = (list) => Array.isArray(list) && list.every((text) => typeof text === "string");
const isText = (value) => typeof value === "string";
const areTextsOf = (value) => isObject(value) && Object.values(value).every(isText);

/** True for what a message of this program looks like. */
export function isMessage(value) {
  return isObject(value) && ["id", "chat", "parent", "role", "content"].every((name) => isText(value[name])) && hasSoundParts(value);
}

const areNumbers = (m, names) => names.every((name) => m[name] === undefined || Number.isFinite(m[name]));
const areTextsIn = (m, names) => names.every((name) => m[name] === undefined || isText(m[name]));

const hasSoundParts = (m) => areNumbers(m, ["born", "rev", "tokens", "first_ms", "decode_ms"]) && areTextsIn(m, ["note", "state", "request", "call"]) && (m.images === undefined || areTexts(m.images)) && (m.thinking === undefined || isText(m.thinking)) &&
  (m.calls === undefined || (Array.isArray(m.calls) && m.calls.every((call) => isObject(call) && isText(call.id) && isText(call.name) && isText(call.arguments))));

/** True for what a chat of this program looks like, without its messages. */
export const isChat = (value) => isObject(value) && isText(value.id) && isText(value.title) && !Array.isArray(value.messages) &&
  areTextsOf(value.settings) && areTextsOf(value.chosen);

/** A chat as it was kept before messages had a store of their own: {chat, messages}, or null when it is none. */
export function fromList(value) {
  if (!isObject(value) || !isText(value.id) || !Array.isArray(value.messages) ||
      !value.messages.every((m) => isObject(m) && isText(m.role) && isText(m.content) && hasSoundParts(m))) return null;
  const { messages, ...rest } = value;
  const chat = { named: false, used: 0, ...rest, title: isText(rest.title) ? rest.title : "Chat", settings: areTextsOf(rest.settings) ? rest.settings : {}, chosen: {} };
  const idOf = (i) => `${value.id}.${i}`;
  return { chat, messages: messages.map((m, i) => ({ ...m, id: idOf(i), chat: value.id, parent: i > 0 ? idOf(i - 1) : "", born: i, rev: 0 })) };
}

const inOrder = (a, b) => (a.born ?? 0) - (b.born ?? 0) || (a.id < b.id ? -1 : 1);

/** The messages that stand where this one stands, itself among them, the oldest first. */
export const siblings = (chat, message) => [...chat.messages.values()].filter((other) => other.parent === message.parent).sort(inOrder);

/** The messages that are shown, from the first to the last. */
export function pathOf(chat) {
  const children = new Map();
  for (const message of chat.messages.values()) {
    if (!children.has(message.parent)) children.set(message.parent, []);
    children.get(message.parent).push(message);
  }
  const path = [];
  for (let at = ""; children.has(at) && path.length <= chat.messages.size; at = path.at(-1).id) {
    const some = children.get(at).sort(inOrder);
    path.push(some.find((message) => message.id === chat.chosen[at]) ?? some.at(-1));
  }
  return path;
}

/** Adds a message after `parent` (null: as the first), and shows it. */
export function addMessage(chat, parent, fields) {
  const message = { id: newId(), chat: chat.id, parent: parent?.id ?? "", born: Date.now(), rev: 0, ...fields };
  for (const other of chat.messages.values()) if (other.parent === message.parent) message.born = Math.max(message.born, (other.born ?? 0) + 1);
  chat.messages.set(message.id, message);
  chat.chosen[message.parent] = message.id;
  return message;
}

/** Takes another tab's state of a message. True if it was news. */
export function mergeMessage(chat, message) {
  const own = chat.messages.get(message.id);
  if (own && (own.rev ?? 0) >= (message.rev ?? 0)) return false;
  // What is shown here stays what is shown.
  const rivals = own ? [] : [...chat.messages.values()].filter((other) => other.parent === message.parent);
  if (rivals.length > 0 && !chat.chosen[message.parent]) chat.chosen[message.parent] = rivals.sort(inOrder).at(-1).id;
  if (own) Object.assign(own, message);
  else chat.messages.set(message.id, message);
  return true;
}
