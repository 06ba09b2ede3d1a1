// Markdown to DOM nodes. What a model writes is hostile until shown otherwise: every character of it ends in a text
// node, and the only attribute it can set is the address of a link with a scheme from a list. Raw HTML stays text,
// images become links. This file reads blocks, markdown_inline.js what is in a line.
import { copyButton, element } from "./common.js";
import { highlighted, languageName } from "./highlight.js";
import { withInline } from "./markdown_inline.js";
import { mathNode } from "./math.js";

const kDeepest = 12;  // nesting of quotes and lists; beyond it the marks stay text

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})\s+(.*)$/;
const kRule = /^ {0,3}(?:\*[ *]{2,}|-[ -]{2,}|_[ _]{2,})$/;
const kItem = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const kQuote = /^ {0,3}>/;
const kTableRule = /^[ |:-]*-[ |:-]*$/;
const kTask = /^\[([ xX])\] +/;
const kMathBegin = /^ {0,3}(\$\$|\\\[)/;
const kMathEnd = { "$$": "$$", "\\[": "\\]" };

const linesOf = (text) => text.replace(/\r\n?/g, "\n").split("\n");
const isBlank = (line) => line.trim() === "";
const isTable = (lines, i) => lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("|") && kTableRule.test(lines[i + 1]);

/** The nodes of a text. Works on text that is still being written: an open code block counts to the end. */
export function markdown(text) {
  const out = document.createDocumentFragment();
  appendBlocks(out, linesOf(text), 0);
  return out;
}

/** Shows a text that grows. Blocks whose source is as before keep their nodes, so a selection in them stays. */
export class GrowingMarkdown {
  #blocks = [];    // {source, nodes, open: drawn while it grew}
  #shown = null;   // [text, whole] of the last call

  constructor(place) { this.place = place; }

  /** `whole`: nothing will follow. Until then the last block is drawn in a cheaper way where there is one. */
  update(text, whole) {
    if (this.#shown?.[0] === text && this.#shown[1] === whole) return;
    this.#shown = [text, whole];
    const lines = linesOf(text);
    const fresh = [];
    for (let i = 0; i < lines.length; ) {
      if (isBlank(lines[i])) { ++i; continue; }
      const end = blockEnd(lines, i, 0);
      fresh.push(lines.slice(i, end).join("\n"));
      i = end;
    }
    let same = 0;
    while (same < fresh.length && this.#blocks[same]?.source === fresh[same]) ++same;
    const last = this.#blocks[same];
    const open = !whole && same === fresh.length - 1;
    if (open && last && same === this.#blocks.length - 1 && growCode(last, fresh[same])) return;
    // A code block that was drawn while it grew is drawn once more, with its colours.
    if (whole && same > 0 && same === fresh.length && this.#blocks[same - 1].open) --same;
    for (const block of this.#blocks.splice(same)) for (const node of block.nodes) node.remove();
    for (; same < fresh.length; ++same) {
      const part = document.createDocumentFragment();
      const growing = !whole && same === fresh.length - 1;
      appendBlocks(part, fresh[same].split("\n"), 0, growing);
      this.#blocks.push({ source: fresh[same], nodes: [...part.childNodes], open: growing });
      this.place.append(part);
    }
  }
}

/** Adds to the text of a code block that has only become longer. False if it is no such block. */
function growCode(block, source) {
  const fence = kFence.exec(block.source.split("\n", 1)[0]);
  if (!block.open || !fence || !source.startsWith(block.source) || block.source.indexOf("\n") < 0) return false;
  const code = block.nodes[0].querySelector?.("pre > code");
  const inner = codeOf(source.split("\n"), 0, fence);
  if (!code || inner.closed || !(code.firstChild instanceof Text) || code.childNodes.length > 1) return false;
  if (!inner.text.startsWith(code.firstChild.data)) return false;
  code.firstChild.appendData(inner.text.slice(code.firstChild.data.length));
  block.source = source;
  return true;
}

/** The index of the line after the block that begins at line i. */
function blockEnd(lines, i, depth) {
  const line = lines[i];
  let match;
  if ((match = kFence.exec(line))) return codeOf(lines, i, match).end;
  if (kHeading.test(line) || kRule.test(line)) return i + 1;
  if (depth < kDeepest && kQuote.test(line)) {
    while (i < lines.length && kQuote.test(lines[i])) ++i;
    return i;
  }
  if (depth < kDeepest && kItem.test(line)) return listOf(lines, i).end;
  if (isTable(lines, i)) {
    for (i += 2; i < lines.length && lines[i].includes("|"); ++i);
    return i;
  }
  if ((match = mathOf(lines, i))) return match.end;
  for (++i; i < lines.length; ++i) {
    const next = lines[i];
    if (isBlank(next) || kFence.test(next) || kHeading.test(next) || kItem.test(next) || kQuote.test(next) || isTable(lines, i) || mathOf(lines, i)) break;
  }
  return i;
}

/** `growing`: the last block is still being written. */
function appendBlocks(out, lines, depth, growing = false) {
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    if (isBlank(line)) { ++i; continue; }
    const end = blockEnd(lines, i, depth);
    let match;
    if ((match = kFence.exec(line))) {
      out.append(codeBlock(codeOf(lines, i, match), match[2], growing && end === lines.length));
    } else if ((match = kHeading.exec(line))) {
      out.append(withInline(`h${Math.min(match[1].length + 2, 6)}`, match[2]));
    } else if (kRule.test(line)) {
      out.append(element("hr"));
    } else if (depth < kDeepest && kQuote.test(line)) {
      const quote = element("blockquote");
      appendBlocks(quote, lines.slice(i, end).map((one) => one.replace(/^ {0,3}> ?/, "")), depth + 1);
      out.append(quote);
    } else if (depth < kDeepest && kItem.test(line)) {
      out.append(listNode(listOf(lines, i), depth));
    } else if (isTable(lines, i)) {
      out.append(tableNode(lines.slice(i, end)));
    } else if ((match = mathOf(lines, i))) {
      out.append(mathNode(match.source, match.tex, true));
    } else {
      out.append(withInline("p", lines.slice(i, end).join("\n")));
    }
    i = end;
  }
}

// ---- Code and formulas ------------------------------------------------------------------------------

/** {text, end, closed} of the code block whose fence is line i. */
function codeOf(lines, i, [, mark]) {
  const code = [];
  for (++i; i < lines.length; ++i) {
    const end = lines[i].trim();
    if (end.length >= mark.length && end === mark[0].repeat(end.length)) return { text: code.join("\n"), end: i + 1, closed: true };
    code.push(lines[i]);
  }
  return { text: code.join("\n"), end: i, closed: false };
}

/** `plain`: without colours, as one text that can grow. */
function codeBlock({ text, closed }, info, plain) {
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  const code = element("code");
  if (plain && !closed) code.append(document.createTextNode(text));
  else code.append(highlighted(text, language));
  const block = element("div", { className: "code" }, element("pre", { tabIndex: 0 }, code),
    copyButton(() => code.textContent));
  if (language) {
    block.dataset.language = language;
    block.prepend(element("span", { className: "language", textContent: languageName(language) }));
  }
  return block;
}

/** {tex, source, end} of the formula that begins at line i and has its lines for itself, or null. */
function mathOf(lines, i) {
  const begin = kMathBegin.exec(lines[i]);
  if (!begin) return null;
  const mark = kMathEnd[begin[1]];
  const tex = [lines[i].slice(begin[0].length)];
  for (;; tex.push(lines[i])) {
    const at = tex.at(-1).indexOf(mark);
    ++i;
    if (at >= 0) {
      if (!isBlank(tex.at(-1).slice(at + mark.length))) return null;  // text follows: it belongs to a paragraph
      tex.push(tex.pop().slice(0, at));
      const inner = tex.join("\n");
      return isBlank(inner) ? null : { tex: inner, source: begin[1] + inner + mark, end: i };
    }
    if (i >= lines.length || isBlank(lines[i]) || tex.length > 200) return null;
  }
}

// ---- Lists and tables -------------------------------------------------------------------------------

/** {items: lines of each, ordered, start, end} of the list that begins at line i. */
function listOf(lines, i) {
  const [, indent, mark] = kItem.exec(lines[i]);
  const ordered = /\d/.test(mark);
  const items = [];
  while (i < lines.length) {
    const match = kItem.exec(lines[i]);
    if (!match || match[1].length !== indent.length || /\d/.test(match[2]) !== ordered) break;
    const inner = [match[4]];
    const within = indent.length + 1;
    for (++i; i < lines.length; ++i) {
      const line = lines[i];
      const leading = line.length - line.trimStart().length;
      if (isBlank(line)) {
        const next = lines[i + 1] ?? "";
        if (isBlank(next) || next.length - next.trimStart().length < within) break;
        inner.push("");
      } else if (leading >= within) {
        inner.push(line.slice(Math.min(leading, indent.length + match[2].length + 1)));
      } else if (kItem.test(line) || kFence.test(line) || inner.at(-1) === "") {
        break;
      } else {
        inner.push(line);
      }
    }
    items.push(inner);
    while (i < lines.length && isBlank(lines[i]) && kItem.test(lines[i + 1] ?? "")) ++i;
  }
  return { items, ordered, start: parseInt(mark, 10), end: i };
}

function listNode({ items, ordered, start }, depth) {
  const list = element(ordered ? "ol" : "ul");
  if (ordered) list.start = start;
  for (const inner of items) {
    const item = element("li");
    const task = kTask.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    appendBlocks(item, inner, depth + 1);
    if (item.children.length === 1 && item.firstChild.tagName === "P") item.replaceChildren(...item.firstChild.childNodes);
    if (task) {
      item.className = "task";
      const done = task[1] !== " ";
      item.prepend(element("input", { type: "checkbox", checked: done, disabled: true, ariaLabel: done ? "done" : "to do" }), " ");
    }
    list.append(item);
  }
  return list;
}

/** The cells of a row. A bar after a backslash, or between backticks, ends no cell. */
function cellsOf(line) {
  const cells = [""];
  const text = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  for (const [part] of text.matchAll(/\\\||`+[^`]*`+|\||[^|\\`]+|[\\`]/g)) {
    if (part === "|") cells.push("");
    else cells.push(cells.pop() + (part === "\\|" ? "|" : part));
  }
  return cells.map((cell) => cell.trim());
}

function tableNode(lines) {
  const sides = cellsOf(lines[1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : ""));
  const row = (name, line) => element("tr", {}, ...cellsOf(line).map((cell, i) => {
    const node = withInline(name, cell);
    if (sides[i]) node.style.textAlign = sides[i];
    return node;
  }));
  const table = element("table", {}, element("thead", {}, row("th", lines[0])), element("tbody", {}, ...lines.slice(2).map((line) => row("td", line))));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Table" }, table);
}
