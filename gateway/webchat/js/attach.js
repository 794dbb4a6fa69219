// Text files go with the message: chosen, dropped on the page or pasted. What is no text is refused in words.

import { filesIn } from "./attachments.js";
import { byId } from "./dom.js";

const MAX_BYTES = 256 * 1024;

/** Wire the ways in; `composer` takes the text, `tell` a sentence when a file cannot be taken. */
export function wireAttach({ composer, tell }) {
  const chooser = byId("file");
  const take = async (files) => {
    for (const file of files) {
      const text = await textOf(file).catch((error) => tell(error.message));
      if (text) composer.attach(file.name, text);
    }
    composer.focus();
  };
  byId("attach").addEventListener("click", () => chooser.click());
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
  throw new Error(`${file.name} is no text; models here read text only.`);
}
