// Colours for code: a list of patterns for each language, tried in order at every place. Texts become nodes, never HTML.
import { element } from "./common.js";

const kLongest = 60000;  // characters; longer code has one colour

const kHash = "#[^\\n]*", kSlashes = "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)", kDashes = "--[^\\n]*";
const kStrings = "\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'(?:[^'\\\\\\n]|\\\\.)*'?";
const kNumbers = "(?<![\\w.])(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.[\\d_]+)?(?:[eE][+-]?\\d+)?)[a-zA-Z]{0,3}\\b";

const words = (text) => text.trim().split(/\s+/);
const kC = "alignas auto bool break case char class const constexpr continue default delete do double else enum explicit extern false float for friend goto if inline int long mutable namespace new noexcept nullptr operator override private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while catch concept requires co_await co_return co_yield NULL";
const kScript = "abstract any as async await boolean break case catch class const continue debugger default delete do else enum export extends false finally for from function get if implements import in instanceof interface let new null number of private protected public readonly return set static string super switch this throw true try type typeof undefined var void while with yield";

// comment, string and word sets of each; `fold`: words in any case.
const kLanguages = {
  python: { name: "Python", comment: kHash, string: `[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${kStrings})`,
    words: "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield self" },
  "javascript": { name: "JavaScript", comment: kSlashes, string: `\`(?:[^\`\\\\]|\\\\[^])*\`?|${kStrings}`, words: kScript },
  typescript: { name: "TypeScript", comment: kSlashes, string: `\`(?:[^\`\\\\]|\\\\[^])*\`?|${kStrings}`, words: `${kScript} declare keyof namespace never unknown satisfies` },
  cpp: { name: "C++", comment: kSlashes, string: kStrings, words: kC, extra: "^[ \\t]*#[ \\t]*\\w+" },
  c: { name: "C", comment: kSlashes, string: kStrings, words: kC, extra: "^[ \\t]*#[ \\t]*\\w+" },
  java: { name: "Java", comment: kSlashes, string: `"""[^]*?(?:"""|$)|${kStrings}`, extra: "@\\w+",
    words: "abstract assert boolean break byte case catch char class const continue default do double else enum extends false final finally float for if implements import instanceof int interface long native new null package permits private protected public record return sealed short static super switch synchronized this throw throws transient true try var void volatile while yield" },
  go: { name: "Go", comment: kSlashes, string: `\`[^\`]*\`?|${kStrings}`,
    words: "any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if import int int64 interface iota map nil package range return rune select string struct switch true type uint var" },
  rust: { name: "Rust", comment: kSlashes, string: "b?\"(?:[^\"\\\\]|\\\\[^])*\"?|'(?:[^'\\\\\\n]|\\\\.)'", extra: "#!?\\[[^\\]\\n]*\\]|\\b\\w+!",
    words: "as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i32 i64 if impl in let loop match mod move mut pub ref return self Self static str struct super trait true type u8 u32 u64 unsafe use usize where while" },
  bash: { name: "Shell", comment: "(?<![^\\s;])#[^\\n]*", string: "\"(?:[^\"\\\\]|\\\\[^])*\"?|'[^']*'?", extra: "\\$\\{[^}\\n]*\\}|\\$[\\w@#?*!$-]",
    words: "case do done elif else esac export fi for function if in local read return set shift then unset until while echo cd exit source" },
  json: { name: "JSON", comment: kSlashes, string: kStrings, extra: "\"(?:[^\"\\\\\\n]|\\\\.)*\"(?=\\s*:)", words: "true false null" },
  sql: { name: "SQL", comment: `${kDashes}|\\/\\*[^]*?(?:\\*\\/|$)`, string: "'(?:[^']|'')*'?|\"[^\"\\n]*\"?", fold: true,
    words: "add all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert int integer into is join key left like limit not null offset on or order outer primary references right rollback select set table text then union unique update values varchar view when where with" },
  html: { name: "HTML", comment: "<!--[^]*?(?:-->|$)", string: "\"[^\"\\n]*\"|'[^'\\n]*'", extra: "<\\/?[\\w:-]+|\\/?>", words: "" },
  css: { name: "CSS", comment: "\\/\\*[^]*?(?:\\*\\/|$)", string: kStrings, extra: "[\\w-]+(?=\\s*:[^:{}]*[;}\\n])|@[\\w-]+|#[\\da-fA-F]{3,8}\\b", words: "" },
  yaml: { name: "YAML", comment: "(?<!\\S)#[^\\n]*", string: kStrings, extra: "^[ \\t-]*[\\w.\\/-]+(?=:(?:\\s|$))", words: "true false null yes no" },
};
const kOtherNames = { py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript",
  "c++": "cpp", cc: "cpp", cxx: "cpp", hpp: "cpp", cuda: "cpp", cu: "cpp", h: "c", golang: "go", rs: "rust", sh: "bash", shell: "bash", zsh: "bash", console: "bash",
  jsonc: "json", json5: "json", mysql: "sql", postgresql: "sql", sqlite: "sql", xml: "html", svg: "html", yml: "yaml" };

const ruleOf = (language) => kLanguages[kOtherNames[language.toLowerCase()] ?? language.toLowerCase()];

/** The name of a language as people write it; what is not known stays as the model wrote it. */
export const languageName = (language) => (Object.hasOwn(kLanguages, kOtherNames[language.toLowerCase()] ?? language.toLowerCase()) ? ruleOf(language).name : language);

const patterns = new Map();
function patternOf(rule) {
  if (!patterns.has(rule)) {
    const parts = [`(?<comment>${rule.comment})`];
    if (rule.extra) parts.push(`(?<extra>${rule.extra})`);
    parts.push(`(?<string>${rule.string})`, `(?<number>${kNumbers})`);
    if (rule.words) parts.push(`(?<word>(?<![\\w$])(?:${words(rule.words).join("|")})(?![\\w$]))`);
    parts.push("(?<call>(?<!\\w)[A-Za-z_]\\w*(?=\\())");
    patterns.set(rule, new RegExp(parts.join("|"), rule.fold ? "gim" : "gm"));
  }
  return patterns.get(rule);
}

/** The code as nodes, with spans of the classes hl-comment, hl-string, hl-number, hl-word, hl-extra and hl-call. */
export function highlighted(text, language) {
  const out = document.createDocumentFragment();
  const known = Object.hasOwn(kLanguages, kOtherNames[language.toLowerCase()] ?? language.toLowerCase());
  if (!known || text.length > kLongest) {
    out.append(text);
    return out;
  }
  let at = 0;
  for (const match of text.matchAll(patternOf(ruleOf(language)))) {
    if (match[0] === "") continue;
    if (match.index > at) out.append(text.slice(at, match.index));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    out.append(element("span", { className: `hl-${kind}`, textContent: match[0] }));
    at = match.index + match[0].length;
  }
  if (at < text.length) out.append(text.slice(at));
  return out;
}
