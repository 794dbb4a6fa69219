// What can go wrong, in sentences for people. Codes are those of the server's error objects.

/** A request that did not work: no connection (`status` 0) or an answer that says no. */
export class Problem extends Error {
  constructor({ status = 0, code = "", message = "", param = null, retryAfterS = null }) {
    super(message || code || "no connection");
    Object.assign(this, { status, code, detail: message, param, retryAfterS });
  }

  get isConnection() {
    return this.status === 0 && !this.code;
  }

  get sentence() {
    return sentenceOf(this);
  }
}

const SENTENCES = {
  context_length_exceeded: "This conversation and the wanted answer are longer than the model can read at once. Start a new chat, or ask for a shorter answer in Settings.",
  unavailable: "No copy of this model is ready at the moment. It may still be loading; try again in a little while.",
  deadline_exceeded: "The answer took too long and the server gave up. Try again, perhaps with a shorter question.",
  dead_letter: "The server tried three times and failed. Its log says why.",
  internal_error: "Something broke on the server. Its log says what.",
  body_too_large: "This message is too long to send.",
  request_cancelled: "The request was cancelled.",
};

function sentenceOf({ status, code, detail, retryAfterS, isConnection }) {
  if (isConnection) return "The server cannot be reached.";
  if (status === 429 || code === "overloaded") {
    const when = retryAfterS ? `in ${Math.ceil(retryAfterS)} s` : "in a moment";
    return `The server has all the work it can take. Try again ${when}.`;
  }
  if (status === 401) return "The server wants a valid API key.";
  if (SENTENCES[code]) return SENTENCES[code];
  if (status === 503) return SENTENCES.unavailable;
  if (detail) return /[.!?]$/.test(detail) ? detail : `${detail}.`;
  return `The server answered with error ${status || code}.`;
}

/** Read the problem out of a response that is not ok. */
export async function problemOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy's HTML page, or nothing: the status alone must do.
  }
  const retryAfter = Number(response.headers.get("retry-after"));
  return new Problem({
    status: response.status,
    code: error.code ?? "",
    message: error.message ?? "",
    param: error.param ?? null,
    retryAfterS: retryAfter > 0 ? retryAfter : null,
  });
}
