// The settings of a chat: its form, and what they add to a request.
import { byId, element } from "./common.js";

// name: [least, most, step, label, what a request without it gets where the server does not say]
const kNumbers = {
  temperature: [0, 2, 0.1, "Temperature"], top_p: [0, 1, 0.05, "Top p"], top_k: [-1, 2 ** 31 - 1, 1, "Top k"], min_p: [0, 1, 0.01, "Min p"],
  repetition_penalty: [0, 10, 0.05, "Repetition penalty"], presence_penalty: [-2, 2, 0.1, "Presence penalty"],
  frequency_penalty: [-2, 2, 0.1, "Frequency penalty"], max_tokens: [1, 2 ** 31 - 1, 1, "Most tokens", "no limit"],
  min_tokens: [0, 2 ** 31 - 1, 1, "Least tokens", "0"], seed: [0, 2 ** 53 - 1, 1, "Seed", "random"],
};
const kTexts = ["model", "system", "thinking", "stop", "tools"];
const kOtherIds = { stop: "stop-texts", model: "model-choice" };  // "stop" is the button, "model" the name on top
const fieldOf = (name) => byId(kOtherIds[name] ?? name);
let offered = [];  // models as /v1/models has them, where there are several

function numberProblem(name, text) {
  const [low, high, step, label] = kNumbers[name];
  const value = Number(text);
  const whole = step === 1;
  const above = name === "repetition_penalty" ? value <= low : value < low;
  if (Number.isFinite(value) && !above && value <= high && (!whole || Number.isInteger(value))) return "";
  const range = name === "repetition_penalty" ? `above ${low}, at most ${high}` : `from ${low} to ${high}`;
  return `${label} (${name}): got ${text}, expected a ${whole ? "whole " : ""}number ${range}.`;
}

/** What the settings add to a request; throws with a sentence about the one that cannot be. */
export function parameters(settings) {
  const out = {};
  for (const name of Object.keys(kNumbers)) {
    const text = String(settings[name] ?? "").trim();
    if (text === "") continue;
    const problem = numberProblem(name, text);
    if (problem) throw new Error(problem);
    out[name] = Number(text);
  }
  const stop = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length > 0) out.stop = stop;
  if (offered.some((card) => card.id === settings.model)) out.model = settings.model;
  if (settings.thinking) out.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools?.trim()) {
    try { out.tools = JSON.parse(settings.tools); } catch (problem) { throw new Error(`Tools: ${problem.message}`); }
    if (!Array.isArray(out.tools)) throw new Error("Tools: expected a list in JSON.");
  }
  return out;
}

/** Makes the fields for numbers. `changed(name, value)` is called when a person has changed a setting. */
export function makeSettings(changed) {
  for (const [name, [min, max, step, label, without]] of Object.entries(kNumbers)) {
    byId("numbers").append(element("label", {}, label, element("input", { id: name, type: "number", min, max, step, placeholder: without ?? "model's" })));
  }
  for (const name of [...kTexts, ...Object.keys(kNumbers)]) {
    fieldOf(name).addEventListener("change", ({ target }) => {
      // A field with letters in it has no value; they would be left out without a word.
      changed(name, target.validity.badInput ? "no number" : target.value);
      if (name === "model") showModelOf({ model: target.value });
    });
  }
}

export function showSettings(settings) {
  for (const name of [...kTexts, ...Object.keys(kNumbers)]) fieldOf(name).value = settings[name] ?? "";
  showModelOf(settings);
  showProblem(settings);
}

/** Says what is wrong with the settings. True if nothing is. */
export function showProblem(settings) {
  let problem = "";
  try { parameters(settings); } catch (caught) { problem = caught.message; }
  byId("settings-problem").textContent = problem;
  byId("settings-problem").hidden = problem === "";
  return problem === "";
}

/** Lets a person choose where the server has several models; `cards` as /v1/models has them, where names of one model share a
    root. */
export function offerModels(cards) {
  const several = cards.filter((card, at) => cards.findIndex((other) => other.root === card.root) === at);
  if (several.length < 2) return;
  offered = several;
  byId("model-choice").replaceChildren(...offered.map(({ id }, at) => element("option", { value: at === 0 ? "" : id }, id)));
  byId("model-label").hidden = false;
}

/** Of several models: the name of a chat's on top, and its defaults. */
function showModelOf(settings) {
  if (offered.length === 0) return;
  const card = offered.find(({ id }) => id === settings.model) ?? offered[0];
  byId("model").textContent = card.id;
  byId("model-choice").value = card === offered[0] ? "" : card.id;
  showDefaults(card);
}

/** Shows what the server takes for a field that is empty; `card` is the model as /v1/models has it. */
export function showDefaults(card) {
  for (const [name, value] of Object.entries(card?.sampling_defaults ?? {})) {
    const field = name in kNumbers ? byId(name) : null;
    if (field) field.placeholder = name === "top_k" && value === 0 ? "0, all" : String(value);
  }
  if (card?.max_model_len) byId("max_tokens").placeholder = `up to ${card.max_model_len}`;
}
