// What is in a line of Markdown: emphasis, code, links, formulas. Every character ends in a text node; see markdown.js.
import { element } from "./common.js";
import { mathNode } from "./math.js";

// One alternative per kind, each bounded by what it may not contain, so that matching takes linear time.
const kInline = [
  "\\\\\\((?<round>[^\\n]{1,2000}?)\\\\\\)",
  "\\\\\\[(?<square>[^\\n]{1,2000}?)\\\\\\]",
  "(?<escape>\\\\[\\\\`*_{}\\[\\]()#+.!~|>$-])",
  "(?<ticks>`+)",
  "\\$\\$(?<display>[^$\\n]{1,2000})\\$\\$",
  "(?<![\\w$])\\$(?<dollar>[^\\s$](?:(?:[^$\\n\\\\]|\\\\[^\\n]){0,2000}?[^\\s$\\\\])?)\\$(?![\\d$])",
  "!?\\[(?<label>[^\\[\\]\\n]{0,500})\\]\\((?<target>[^\\s()]{1,2000})\\)",
  "(?<url>https?://[^\\s<>()\\[\\]`*\"']{1,2000})",
  "\\*\\*(?<strong>[^\\s*](?:[^*\\n]{0,2000}[^\\s*])?)\\*\\*",
  "\\*(?<em>[^\\s*](?:[^*\\n]{0,2000}[^\\s*])?)\\*",
  "(?<![\\w_])_(?<em2>[^\\s_](?:[^_\\n]{0,2000}[^\\s_])?)_(?![\\w_])",
  "~~(?<gone>[^~\\n]{1,2000})~~",
].join("|");

export function withInline(name, text) {
  const node = element(name);
  appendInline(node, text, 0);
  return node;
}

/** True for what stands between two signs of money: "5 to 10", "20, or ". A formula that begins with a number has a sign in it. */
const isMoney = (text) => /^[\d.,]+(?:[\s,;:]|$)/.test(text) && !/[\\^_={}+*/<>]/.test(text) && /[^\d.,\s]/.test(text);

function appendInline(out, text, depth) {
  let at = 0;
  const plain = (end) => { if (end > at) out.append(text.slice(at, end)); };
  const finder = new RegExp(kInline, "g");
  for (let match; (match = finder.exec(text));) {
    const found = match.groups;
    let node, end = match.index + match[0].length;
    const inside = found.round ?? found.dollar, set = found.square ?? found.display;
    if (found.dollar && isMoney(found.dollar)) {
      finder.lastIndex = match.index + 1;
      continue;
    }
    if (inside ?? set) {
      node = mathNode(match[0], inside ?? set, set !== undefined);
    } else if (found.escape) {
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
