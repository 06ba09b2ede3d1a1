// The API as tables, from /openapi.json.
import { byId, element, getJson, notice, showModel } from "./common.js";

const kDeepest = 6;  // nested schemas; deeper ones are named only

/** The schema that a reference within the document stands for. */
function resolved(schema, api, depth = 0) {
  if (typeof schema !== "object" || schema === null) return {};
  if (typeof schema.$ref !== "string" || depth > kDeepest) return schema;
  const target = schema.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], api);
  return resolved(target, api, depth + 1);
}

function typeOf(schema, api, depth = 0) {
  const own = resolved(schema, api);
  const several = own.anyOf ?? own.oneOf;
  if (Array.isArray(several) && depth < kDeepest) return [...new Set(several.filter((one) => one.type !== "null").map((one) => typeOf(one, api, depth + 1)))].join(" or ");
  if ("const" in own) return JSON.stringify(own.const);
  if (Array.isArray(own.enum)) return own.enum.map((value) => JSON.stringify(value)).join(", ");
  const type = [].concat(own.type ?? "any").filter((name) => name !== "null").join(" or ") || "null";
  return type === "array" && own.items && depth < kDeepest ? `array of ${typeOf(own.items, api, depth + 1)}` : type;
}

function boundsOf(schema) {
  const { minimum: low, maximum: high } = schema;
  if (low !== undefined && high !== undefined) return `${low} to ${high}`;
  return low !== undefined ? `at least ${low}` : high !== undefined ? `at most ${high}` : "";
}

function fieldsTable(schema, api) {
  const own = resolved(schema, api);
  const required = new Set(own.required ?? []);
  const names = [...new Set([...Object.keys(own.properties ?? {}), ...required])];
  if (names.length === 0) return null;
  names.sort((a, b) => required.has(b) - required.has(a) || a.localeCompare(b));
  const row = (name) => {
    const field = resolved(own.properties?.[name] ?? {}, api);
    return element("tr", {}, element("td", {}, element("code", { textContent: name }), required.has(name) ? element("span", { className: "quiet", textContent: " always" }) : null),
      element("td", { textContent: typeOf(field, api) }), element("td", { textContent: boundsOf(field) }), element("td", { textContent: field.description ?? "" }));
  };
  const heads = ["field", "type", "allowed", "what it does"].map((text) => element("th", { textContent: text }));
  return element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...names.map(row))));
}

function contents(title, content, api) {
  const parts = [];
  for (const [type, { schema }] of Object.entries(content ?? {})) {
    const table = fieldsTable(schema, api);
    parts.push(element("p", {}, `${title}: `, element("code", { textContent: type })), ...(table ? [table] : []));
  }
  return parts;
}

function routeElement(path, method, route, api) {
  const open = Array.isArray(route.security) && route.security.length === 0;
  const details = element("details", { id: `${method}-${path}` },
    element("summary", {}, element("strong", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` })), ` ${route.summary ?? ""}`, open ? element("span", { className: "quiet", textContent: " without a key" }) : null));
  details.addEventListener("toggle", () => {  // the tables are long: made when they are looked at
    if (!details.open || details.childElementCount > 1) return;
    details.append(...contents("Body", route.requestBody?.content, api));
    for (const [status, answer] of Object.entries(route.responses ?? {})) {
      const about = resolved(answer, api);
      details.append(element("h3", { textContent: `${status === "default" ? "Otherwise" : status}: ${about.description ?? ""}` }), ...contents("Answer", about.content, api));
    }
  });
  return details;
}

/** What a search looks through: the route, what its answers mean, and names and descriptions of the fields of its bodies. */
function searchText(path, method, route, api) {
  const answers = Object.values(route.responses ?? {}).map((answer) => resolved(answer, api));
  const contents = [route.requestBody, ...answers].flatMap((part) => Object.values(part?.content ?? {}));
  const fields = contents.flatMap(({ schema }) => Object.entries(resolved(schema, api).properties ?? {}));
  return [method, path, route.summary, ...answers.map(({ description }) => description),
    ...fields.flatMap(([name, field]) => [name, resolved(field, api).description])].join(" ").toLowerCase();
}

/** Shows the routes in which every word of the search occurs. */
function search(routes) {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { view, text } of routes) {
    view.hidden = !words.every((word) => text.includes(word));
    shown += !view.hidden;
  }
  byId("found").textContent = words.length === 0 ? "" : `${shown} of ${routes.length} routes`;
}

try {
  const api = await getJson("/openapi.json");
  const routes = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, route]) =>
    ({ view: routeElement(path, method, route, api), text: searchText(path, method, route, api) })));
  byId("routes").replaceChildren(...routes.map(({ view }) => view));
  byId("search").addEventListener("input", () => search(routes));
  search(routes);  // a browser that goes back keeps what was typed
} catch (problem) {
  notice(problem.message);
}
byId("routes").removeAttribute("aria-busy");
await showModel();
