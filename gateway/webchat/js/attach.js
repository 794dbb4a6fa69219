// Files go with the message: chosen, dropped on the page or pasted. They are texts, and pictures where the model sees some.

import { filesIn } from "./attachments.js";
import { byId } from "./dom.js";
import { isPicture, pictureOf } from "./pictures.js";

const MAX_BYTES = 256 * 1024;

/** Wire the ways in; `composer` takes what is in a file, `tell` a sentence when it cannot be taken. */
export function wireAttach({ composer, settings, tell }) {
  const chooser = byId("file");
  const button = byId("attach");
  const takeOne = async (file) => {
    const limits = settings.pictureLimits;
    if (limits && isPicture(file)) {
      if (composer.numPictures >= limits.max_images) throw new Error(`A message has room for ${limits.max_images === 1 ? "one picture" : `${limits.max_images} pictures`}.`);
      composer.attachPicture(file.name || "picture", await pictureOf(file, limits.max_image_bytes));
    } else composer.attach(file.name, await textOf(file));
  };
  const take = async (files) => {
    for (const file of files) await takeOne(file).catch((error) => tell(error.message));
    composer.focus();
  };
  const name = () => (button.ariaLabel = button.title = settings.pictureLimits ? "Add a picture or a text file" : "Add a text file");
  settings.addEventListener("change", name);
  name();
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    void take([...chooser.files]);
    chooser.value = ""; // the same file may come again
  });
  byId("message").addEventListener("paste", (event) => {
    const files = filesIn(event.clipboardData);
    if (!files.length) return;
    event.preventDefault();
    void take(files);
  });
  document.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    void take([...event.dataTransfer.files]);
  });
}

async function textOf(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES / 1024} KB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text.replace(/\r\n?/g, "\n");
  } catch {
    // Not UTF-8, or it cannot be read.
  }
  throw new Error(`${file.name} is no text; ${isPicture(file) ? "this model sees no pictures" : "other files are not read"}.`);
}
