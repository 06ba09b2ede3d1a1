// Markdown to DOM nodes. What a model writes is hostile until shown otherwise: every character of it ends in a text
// node, and the only attribute it can set is the address of a link with a scheme from a list. Raw HTML stays text,
// images become links.
import { element, copyButton } from "./common.js";

const kDeepest = 12;  // nesting of quotes and lists; beyond it the marks stay text

/** The nodes of a text. Works on text that is still being written: an open code block counts to the end. */
export function markdown(text) {
  const out = document.createDocumentFragment();
  appendBlocks(out, text.replace(/\r\n?/g, "\n").split("\n"), 0);
  return out;
}

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})\s+(.*)$/;
const kRule = /^ {0,3}(?:\*[ *]{2,}|-[ -]{2,}|_[ _]{2,})$/;
const kItem = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const kTableRule = /^[ |:-]*-[ |:-]*$/;

function appendBlocks(out, lines, depth) {
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if (line.trim() === "") {
      ++i;
    } else if ((match = kFence.exec(line))) {
      i = appendCode(out, lines, i, match);
    } else if ((match = kHeading.exec(line))) {
      out.append(withInline(`h${Math.min(match[1].length + 2, 6)}`, match[2]));
      ++i;
    } else if (kRule.test(line)) {
      out.append(element("hr"));
      ++i;
    } else if (depth < kDeepest && /^ {0,3}>/.test(line)) {
      const inner = [];
      while (i < lines.length && /^ {0,3}>/.test(lines[i])) inner.push(lines[i++].replace(/^ {0,3}> ?/, ""));
      const quote = element("blockquote");
      appendBlocks(quote, inner, depth + 1);
      out.append(quote);
    } else if (depth < kDeepest && kItem.test(line)) {
      i = appendList(out, lines, i, depth);
    } else if (line.includes("|") && i + 1 < lines.length && lines[i + 1].includes("|") && kTableRule.test(lines[i + 1])) {
      i = appendTable(out, lines, i);
    } else {
      const begin = i++;
      while (i < lines.length && lines[i].trim() !== "" && !kFence.test(lines[i]) && !kHeading.test(lines[i]) &&
             !kItem.test(lines[i]) && !/^ {0,3}>/.test(lines[i])) ++i;
      out.append(withInline("p", lines.slice(begin, i).join("\n")));
    }
  }
}

function appendCode(out, lines, i, [, mark, language]) {
  const code = [];
  for (++i; i < lines.length; ++i) {
    const end = lines[i].trim();
    if (end.length >= mark.length && end === mark[0].repeat(end.length)) break;
    code.push(lines[i]);
  }
  const text = code.join("\n");
  const block = element("div", { className: "code" }, element("pre", {}, element("code", { textContent: text })),
    copyButton(() => text));
  if (language.trim()) block.dataset.language = language.trim().slice(0, 40);
  out.append(block);
  return i + 1;
}

function appendList(out, lines, i, depth) {
  const [, indent, mark] = kItem.exec(lines[i]);
  const ordered = /\d/.test(mark);
  const list = element(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(mark, 10);
  while (i < lines.length) {
    const match = kItem.exec(lines[i]);
    if (!match || match[1].length !== indent.length || /\d/.test(match[2]) !== ordered) break;
    const inner = [match[4]];
    const within = indent.length + 1;
    for (++i; i < lines.length; ++i) {
      const line = lines[i];
      const leading = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const next = lines[i + 1] ?? "";
        if (next.trim() === "" || next.length - next.trimStart().length < within) break;
        inner.push("");
      } else if (leading >= within) {
        inner.push(line.slice(Math.min(leading, indent.length + match[2].length + 1)));
      } else if (kItem.test(line) || kFence.test(line) || inner.at(-1) === "") {
        break;
      } else {
        inner.push(line);
      }
    }
    const item = element("li");
    appendBlocks(item, inner, depth + 1);
    if (item.children.length === 1 && item.firstChild.tagName === "P") item.replaceChildren(...item.firstChild.childNodes);
    list.append(item);
    while (i < lines.length && lines[i].trim() === "" && kItem.test(lines[i + 1] ?? "")) ++i;
  }
  out.append(list);
  return i;
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function appendTable(out, lines, i) {
  const row = (name, line) => element("tr", {}, ...cellsOf(line).map((cell) => withInline(name, cell)));
  const table = element("table", {}, element("thead", {}, row("th", lines[i])));
  const body = element("tbody");
  for (i += 2; i < lines.length && lines[i].includes("|"); ++i) body.append(row("td", lines[i]));
  table.append(body);
  out.append(element("div", { className: "scroll" }, table));
  return i;
}

function withInline(name, text) {
  const node = element(name);
  appendInline(node, text, 0);
  return node;
}

// One alternative per kind, each bounded by what it may not contain, so that matching takes linear time.
const kInline = [
  "(?<escape>\\\\[\\\\`*_{}\\[\\]()#+.!~|>-])",
  "(?<ticks>`+)",
  "!?\\[(?<label>[^\\[\\]\\n]{0,500})\\]\\((?<target>[^\\s()]{1,2000})\\)",
  "(?<url>https?://[^\\s<>()\\[\\]`*\"']{1,2000})",
  "\\*\\*(?<strong>[^\\s*](?:[^*\\n]{0,2000}[^\\s*])?)\\*\\*",
  "\\*(?<em>[^\\s*](?:[^*\\n]{0,2000}[^\\s*])?)\\*",
  "(?<![\\w_])_(?<em2>[^\\s_](?:[^_\\n]{0,2000}[^\\s_])?)_(?![\\w_])",
  "~~(?<gone>[^~\\n]{1,2000})~~",
].join("|");

function appendInline(out, text, depth) {
  let at = 0;
  const plain = (end) => { if (end > at) out.append(text.slice(at, end)); };
  const finder = new RegExp(kInline, "g");
  for (let match; (match = finder.exec(text));) {
    const found = match.groups;
    let node, end = match.index + match[0].length;
    if (found.escape) {
      node = found.escape[1];
    } else if (found.ticks) {
      const close = text.indexOf(found.ticks, end);
      if (close < 0 || text[close + found.ticks.length] === "`") continue;
      node = element("code", { textContent: text.slice(end, close).replace(/^ (.*) $/s, "$1") });
      end = close + found.ticks.length;
      finder.lastIndex = end;
    } else if (found.target !== undefined) {
      node = link(found.target, found.label || found.target);
    } else if (found.url) {
      const address = found.url.replace(/[.,;:!?]+$/, "");
      end = match.index + address.length;
      finder.lastIndex = end;
      node = link(address, address);
    } else {
      const name = found.strong ? "strong" : found.gone ? "del" : "em";
      const inner = found.strong ?? found.gone ?? found.em ?? found.em2;
      node = element(name);
      if (depth < 4) appendInline(node, inner, depth + 1);
      else node.append(inner);
    }
    plain(match.index);
    out.append(node);
    at = end;
  }
  plain(text.length);
}

// Other schemes, those of scripts and data among them, and relative addresses stay text.
function link(target, label) {
  let address;
  try { address = new URL(target); } catch { return `[${label}](${target})`; }
  if (!["http:", "https:", "mailto:"].includes(address.protocol)) return `[${label}](${target})`;
  return element("a", { href: address.href, target: "_blank", rel: "noopener noreferrer", textContent: label });
}
