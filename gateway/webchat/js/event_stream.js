// Server-Sent Events from a fetch body. `EventSource` cannot POST; and lines end at CR, LF or CRLF only: U+2028 and its
// kin are legal inside JSON strings and must not split one.

/** Nothing at all came for `idleMs`, not even a keep-alive comment: the connection is dead without saying so. */
export class StreamIdle extends Error {}

/** Yield `{event, data}` for each event in `body` (a ReadableStream of bytes). */
export async function* readEvents(body, { idleMs = 60_000 } = {}) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const lines = new LineSplitter();
  let event = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await readOrIdle(reader, idleMs);
      if (done) return; // an event without its closing blank line is incomplete and dropped, as the standard says
      for (const line of lines.push(decoder.decode(value, { stream: true }))) {
        if (line === "") {
          if (data.length) yield { event: event || "message", data: data.join("\n") };
          event = "";
          data = [];
          continue;
        }
        const [field, text] = fieldOf(line);
        if (field === "data") data.push(text);
        else if (field === "event") event = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function fieldOf(line) {
  const colon = line.indexOf(":");
  if (colon === -1) return [line, ""];
  const text = line.slice(colon + 1);
  return [line.slice(0, colon), text.startsWith(" ") ? text.slice(1) : text];
}

async function readOrIdle(reader, idleMs) {
  let timer;
  const idle = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new StreamIdle("the stream fell silent")), idleMs);
  });
  try {
    return await Promise.race([reader.read(), idle]);
  } finally {
    clearTimeout(timer);
  }
}

/** Cuts text into lines at CR, LF or CRLF, also when a CRLF is split over two pieces. */
export class LineSplitter {
  #rest = "";
  #sawCr = false;

  push(text) {
    if (!text) return [];
    const isSecondHalf = this.#sawCr && text.startsWith("\n");
    this.#sawCr = text.endsWith("\r");
    if (isSecondHalf) text = text.slice(1);
    const parts = text.split(/\r\n|\r|\n/);
    parts[0] = this.#rest + parts[0];
    this.#rest = parts.pop();
    return parts;
  }
}
