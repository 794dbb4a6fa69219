// Pictures that go with a message: read from files as data: URLs, sent as parts of it, found again in stored items.

import { make } from "./dom.js";

const KINDS = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);

export const isPicture = (file) => file.type.startsWith("image/") && file.type !== "image/svg+xml"; // which is text

/** The data: URL of a picture file; rejects with a sentence for one that the server would not read. */
export function pictureOf(file, maxBytes) {
  if (!KINDS.has(file.type)) return Promise.reject(new Error(`${file.name} cannot be read; PNG, JPEG, WebP and GIF can.`));
  if (file.size > maxBytes) return Promise.reject(new Error(`${file.name} is larger than ${sizeOf(maxBytes)}, which is the most here.`));
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read.`)));
    reader.readAsDataURL(file);
  });
}

/** Bytes as people read them. */
const sizeOf = (bytes) => (bytes >= 2 ** 20 ? `${Number((bytes / 2 ** 20).toFixed(1))} MB` : `${Math.max(1, Math.floor(bytes / 1024))} KB`);

/** The input of a request: words alone, or pictures and what is said of them. */
export function inputOf(words, pictures) {
  if (!pictures.length) return words;
  const content = pictures.map((url) => ({ type: "input_image", image_url: url, detail: "auto" }));
  if (words) content.push({ type: "input_text", text: words });
  return [{ type: "message", role: "user", content }];
}

/** The pictures in a stored item, as data: URLs. */
export function picturesIn(item) {
  const parts = typeof item.content === "string" ? [] : (item.content ?? []);
  return parts.filter((part) => part.type === "input_image" && part.image_url).map((part) => part.image_url);
}

/** Pictures as somebody sent them, in a row; null for none. */
export function pictureRow(pictures) {
  if (!pictures.length) return null;
  const name = (at) => (pictures.length === 1 ? "Attached picture" : `Attached picture ${at + 1}`);
  return make("div", { class: "said-pictures" }, ...pictures.map((url, at) => make("img", { src: url, alt: name(at) })));
}
