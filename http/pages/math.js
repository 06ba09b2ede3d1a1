// Formulas, set by KaTeX as MathML. KaTeX is loaded when the first formula is met; until then, and where the program was built
// without it, a formula is shown as it was written.
import { element } from "./common.js";

const kLongest = 5000;  // characters of a formula
const kOptions = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 };

let katex = null;
let loading = null;  // the promise of KaTeX, once it was asked for

function load() {
  // The script is no module: it leaves its object at the window. It is absent in a program without KaTeX.
  loading ??= import("./katex.js").then(() => { katex = window.katex ?? null; }, () => { loading = null; });
  return loading;
}

function set(node, tex, display) {
  if (!katex || tex.length > kLongest) return;
  const box = element("span");
  try {
    katex.render(tex, box, { ...kOptions, displayMode: display });
  } catch {
    return;  // not TeX, or not yet: the text stays
  }
  node.replaceChildren(...(box.querySelector("math") ? [box.querySelector("math")] : box.childNodes));
}

/** A formula `tex`, written as `source`. `display`: on a line of its own. */
export function mathNode(source, tex, display) {
  const node = element(display ? "div" : "span", { className: display ? "math display" : "math", textContent: source });
  if (display) node.tabIndex = 0;  // wide ones are scrolled
  if (katex) set(node, tex, display);
  else load().then(() => set(node, tex, display));
  return node;
}
