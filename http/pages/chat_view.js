// The messages on the page. A message has one view as long as it is shown; what has not changed keeps its nodes, so a selection,
// the focus and what is typed stay while an answer is written.
import { byId, copyButton, element } from "./common.js";
import { imageRow } from "./chat_images.js";
import { GrowingMarkdown } from "./markdown.js";

const kNames = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const kAtOnce = 10;       // messages that are drawn before the page is shown, from the end
const kSlice = 12;        // ms for drawing earlier ones before the browser has its turn
const kNearEnd = 120;     // px

function figuresOf(message) {
  const parts = [];
  if (message.tokens) parts.push(`${message.tokens} tokens`);
  if (message.tokens > 1 && message.decode_ms > 0) parts.push(`${((message.tokens - 1) / message.decode_ms * 1000).toFixed(1)} tokens/s`);
  if (message.first_ms) parts.push(`first after ${(message.first_ms / 1000).toFixed(2)} s`);
  return parts.join(" · ");
}

/** Calls `make` where `key` is another one than for the last call with this node. */
function renew(node, key, make) {
  if (node.renewedFor === key) return;
  node.renewedFor = key;
  node.replaceChildren(...make());
}

class MessageView {
  #before = null;  // the nodes that an edit has replaced

  /** `act(name, message, ...)` does what a button is for; see chat.js. */
  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.thoughts = element("div");
    this.thinking = element("details", { className: "thinking", hidden: true }, element("summary"), this.thoughts);
    this.images = element("div", { className: "images" }, ...imageRow(message.images || []));
    this.body = element("div", { className: "body" });
    this.calls = element("div");
    this.note = element("p", { hidden: true });
    this.tools = element("div", { className: "tools" });
    this.figures = element("span", { className: "figures-of-answer" });
    this.article = element("article", { className: message.role }, element("p", { className: "who", textContent: kNames[message.role] || message.role }),
      this.thinking, ...(message.images?.length ? [this.images] : []), this.body, this.calls, this.note, this.tools);
    if (message.role === "assistant") this.text = new GrowingMarkdown(this.body);
    this.thought = new GrowingMarkdown(this.thoughts);
  }

  /** `facts`: {written: by any tab, mayGoOn, place, count: among its siblings, given: ids of calls that have a result}. */
  update(facts) {
    const { message } = this;
    if (message.thinking) {
      this.thinking.hidden = false;
      this.thinking.firstChild.textContent = message.content ? "Thoughts" : facts.written ? "Thinking…" : "Thoughts";
      this.thought.update(message.thinking, !facts.written || message.content !== "");
    }
    if (this.text) this.text.update(message.content, !facts.written);
    else if (this.body.textContent !== message.content) this.body.textContent = message.content;
    renew(this.calls, JSON.stringify([message.calls, facts.given, facts.written]), () => (message.calls || []).map((call) => this.#callElement(call, facts)));
    this.note.hidden = !message.note;
    this.note.textContent = message.note || "";
    this.note.className = message.failed ? "problem" : "quiet";
    this.figures.textContent = figuresOf(message);
    renew(this.tools, JSON.stringify([message.request, facts.mayGoOn, message.content !== "", facts.written, facts.place, facts.count]), () => this.#toolNodes(facts));
  }

  #button(textContent, ...action) {
    return element("button", { type: "button", textContent, onclick: () => this.act(action[0], this.message, ...action.slice(1)) });
  }

  #toolNodes({ written, mayGoOn, place, count }) {
    const { message } = this;
    const nodes = [copyButton(() => message.content)];
    if (message.role === "user") nodes.push(element("button", { type: "button", textContent: "Edit", onclick: () => this.edit() }));
    if (message.role === "assistant") {
      if (mayGoOn) nodes.push(this.#button("Continue", "goOn"));
      nodes.push(this.#button("Regenerate", "regenerate"));
    }
    if (count > 1) {
      const turn = (label, by, title) => Object.assign(this.#button(label, "turn", by), { title, ariaLabel: title, disabled: place + by < 0 || place + by >= count });
      nodes.push(element("span", { className: "branches" }, turn("‹", -1, "The version before"), ` ${place + 1}/${count} `, turn("›", 1, "The version after")));
    }
    if (message.role === "assistant") {
      nodes.push(this.figures);
      if (message.request && !written) nodes.push(element("a", { href: `/topology#${encodeURIComponent(message.request)}`, textContent: "its way" }));
    }
    return nodes;
  }

  #callElement(call, { given, written }) {
    let shown = call.arguments;
    try { shown = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* still being written, or cut */ }
    const box = element("div", { className: "call" }, element("strong", { textContent: `Call of ${call.name}` }), element("pre", { tabIndex: 0 }, element("code", { textContent: shown })));
    if (!given.includes(call.id) && !written) {
      const result = element("textarea", { rows: 2, ariaLabel: `Result of ${call.name}`, placeholder: "Its result, as the model should see it" });
      box.append(result, element("button", { type: "button", textContent: "Give the result", onclick: () => this.act("giveResult", this.message, call, result.value) }));
    }
    return box;
  }

  /** Turns the question into a form. Enter sends it as another version of the question, Esc brings the old one back. */
  edit() {
    if (this.#before) return;
    const { message } = this;
    const area = element("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1), ariaLabel: "Question" });
    const row = element("div", { className: "images" });
    let images = message.images || [];
    const showRow = () => row.replaceChildren(...imageRow(images, (i) => { images = images.filter((_, other) => other !== i); showRow(); }));
    showRow();
    const cancel = () => {
      this.article.replaceChildren(...this.#before);
      this.#before = null;
      [...this.tools.children].find((button) => button.textContent === "Edit")?.focus();
    };
    const save = () => {
      if (area.value.trim() === "" && images.length === 0) return;
      if (this.act("askAgain", message, area.value, images)) cancel();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
      if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    });
    this.#before = [...this.article.childNodes];
    this.article.replaceChildren(row, area, element("div", { className: "tools" },
      element("button", { type: "button", textContent: "Ask again", onclick: save }),
      element("button", { type: "button", textContent: "Cancel", onclick: cancel })));
    area.focus();
  }
}

/** The list of messages in #messages. */
export class ConversationView {
  #views = new Map();  // message id → MessageView, of those on the page
  #path = [];
  #drawing = 0;        // the timer that draws earlier messages
  #follows = true;     // the end stays in sight

  constructor(act, factsOf) {
    this.act = act;
    this.factsOf = factsOf;
    this.log = byId("messages");
    this.log.addEventListener("scroll", () => {
      this.#follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < kNearEnd;
    }, { passive: true });
  }

  /** Shows these messages and no others: the last ones at once, the others when the browser has time. */
  show(path, toTheEnd = true) {
    clearTimeout(this.#drawing);
    const shown = new Set(path.map((message) => message.id));
    for (const [id, view] of this.#views) {
      if (shown.has(id)) continue;
      view.article.remove();
      this.#views.delete(id);
    }
    this.#path = path;
    if (toTheEnd) this.#follows = true;
    this.refreshAll();
    this.#draw(path.length - kAtOnce, 0);
    if (toTheEnd) this.toTheEnd();
  }

  /** Draws what is not drawn from the end back to message `least`, and before that for `budget` ms; then goes on in slices. */
  #draw(least, budget) {
    const end = performance.now() + budget;
    let next = null;  // the article before which the one in hand stands
    for (let i = this.#path.length - 1; i >= 0; --i) {
      const message = this.#path[i];
      let view = this.#views.get(message.id);
      if (!view) {
        if (i < least && performance.now() >= end) {
          this.#drawing = setTimeout(() => {
            this.#draw(this.#path.length, kSlice);
            if (this.#follows) this.toTheEnd();
          });
          return;
        }
        view = new MessageView(message, this.act);
        view.update(this.factsOf(message));
        this.#views.set(message.id, view);
        if (next) next.before(view.article);
        else this.log.append(view.article);
      }
      next = view.article;
    }
  }

  /** Draws one message anew, if it is shown. */
  refresh(message) {
    this.#views.get(message.id)?.update(this.factsOf(message));
    if (this.#follows) this.toTheEnd();
  }

  /** Draws every message that is shown anew: what they may do has changed. */
  refreshAll() {
    for (const message of this.#path) this.#views.get(message.id)?.update(this.factsOf(message));
  }

  toTheEnd() { this.log.scrollTop = this.log.scrollHeight; }
}
