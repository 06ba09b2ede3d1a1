// The images of a question: chosen with the button, dropped on the page or pasted. They stay on the page, as data: URLs, until the
// question is sent.
import { byId, element, notice } from "./common.js";

const kMostBytes = 20 * 2 ** 20;
let chosen = [];
let model = { sees: true, name: "This model" };  // as long as the server has not said

const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

/** Pictures in a row; `remove`, if given, is called with the index of the one whose button is pressed. */
export function imageRow(urls, remove = null) {
  return urls.map((url, i) => {
    const name = `Image ${i + 1} of the question`;
    const picture = element("img", { src: url, alt: name });
    if (!remove) return picture;
    const button = element("button", { type: "button", textContent: "×", title: "Leave out", ariaLabel: `Leave out: ${name}` });
    button.addEventListener("click", () => remove(i));
    return element("span", {}, picture, button);
  });
}

function showChosen() {
  byId("chosen").hidden = chosen.length === 0;
  byId("chosen").replaceChildren(...imageRow(chosen, (i) => { chosen.splice(i, 1); showChosen(); byId("question").focus(); }));
}

/** Adds files to the question. Says why where one cannot be sent. */
export async function addImages(files) {
  if (files.length === 0) return;
  if (!model.sees) {
    notice(`${model.name} cannot see images: it reads text only.`);
    return;
  }
  notice("");
  for (const file of files) {
    if (!file.type.startsWith("image/")) notice(`${file.name} is no image.`);
    else if (file.size > kMostBytes) notice(`${file.name} has more than 20 MiB.`);
    else {
      try {
        chosen.push(await dataUrl(file));
      } catch (problem) {
        notice(`${file.name} could not be read: ${problem.message}`);
      }
    }
  }
  showChosen();
}

export const hasImages = () => chosen.length > 0;

/** The images of the question, which has none afterwards. */
export function takeImages() {
  const taken = chosen;
  chosen = [];
  showChosen();
  return taken;
}

/** `card`: the model as /v1/models has it, or null. */
export function offerImages(card) {
  if (card) model = { sees: card.capabilities?.vision === true, name: card.id };
  byId("add-image").hidden = !model.sees;
}

const carriesFiles = (event) => Array.from(event.dataTransfer?.types || []).includes("Files");

byId("add-image").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", async () => {
  await addImages([...byId("files").files]);
  byId("files").value = "";  // the same file can be chosen again
  byId("question").focus();
});
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files || [])];
  if (files.length === 0) return;
  event.preventDefault();
  addImages(files);
});
document.addEventListener("dragover", (event) => { if (carriesFiles(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();  // or the browser would leave the page for the file
  addImages([...event.dataTransfer.files]);
});
