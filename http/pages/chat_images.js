// The images of a question: chosen with the button, dropped on the page or pasted. They stay on the page, as data: URLs, until the
// question is sent. A file that cannot be one is left out, with a sentence that says why.
import { byId, element, notice } from "./common.js";

const kMostBytes = 20 * 2 ** 20;
const kTypes = ["image/png", "image/jpeg", "image/webp", "image/gif"];  // as #files accepts them and the server reads them
let chosen = [];
let reading = Promise.resolve();  // settled when every file given so far is among the chosen or refused
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

/** Why the file cannot be an image of the question, or its data: URL. */
async function urlOrProblem(file) {
  if (!file.type.startsWith("image/")) return { problem: `${file.name} is no image.` };
  if (!kTypes.includes(file.type)) return { problem: `${file.name} is of the type ${file.type}: PNG, JPEG, WebP and GIF can be sent.` };
  if (file.size > kMostBytes) return { problem: `${file.name} has more than 20 MiB.` };
  try {
    const url = await dataUrl(file);
    return await element("img", { src: url }).decode().then(() => ({ url }), () => ({ problem: `${file.name} is damaged, or no image.` }));
  } catch (problem) {
    return { problem: `${file.name} could not be read: ${problem.message}` };
  }
}

async function read(files) {
  const found = await Promise.all(files.map(urlOrProblem));
  chosen.push(...found.filter((one) => one.url).map((one) => one.url));
  notice(found.filter((one) => one.problem).map((one) => one.problem).join(" "));
  showChosen();
}

/** Adds files to the question. Says why where one cannot be sent. */
export function addImages(files) {
  if (files.length === 0) return;
  if (!model.sees) notice(`${model.name} cannot see images: it reads text only.`);
  else reading = reading.then(() => read(files));
}

/** Resolves when every file given so far is among the images, or has been refused. */
export const imagesRead = () => reading;

/** The images of the question. */
export const chosenImages = () => [...chosen];

/** Leaves all images of the question out. */
export function clearImages() {
  chosen = [];
  showChosen();
}

/** `card`: the model as /v1/models has it, or null. */
export function offerImages(card) {
  if (card) model = { sees: card.capabilities?.vision === true, name: card.id };
  byId("add-image").hidden = !model.sees;
}

const carriesFiles = (event) => Array.from(event.dataTransfer?.types || []).includes("Files");

byId("add-image").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", () => {
  addImages([...byId("files").files]);
  byId("files").value = "";  // the same file can be chosen again
  byId("question").focus();
});
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files || [])];
  // Cells of a table and the like come as text with a picture of it: the text is what was meant.
  if (files.length === 0 || event.clipboardData.getData("text/plain") !== "") return;
  event.preventDefault();
  addImages(files);
});
document.addEventListener("dragover", (event) => { if (carriesFiles(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();  // or the browser would leave the page for the file
  addImages([...event.dataTransfer.files]);
});
