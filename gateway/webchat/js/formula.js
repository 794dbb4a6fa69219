// LaTeX to MathML, which browsers draw and screen readers read. The library comes with the first formula; whatever it cannot
// read, and whatever may not be (definitions, links, images), stays as the model wrote it.

import DOMPurify from "../vendor/purify.es.mjs";
import { pause } from "./connection.js";
import { make } from "./dom.js";
import { LONGEST_FORMULA, readFormula } from "./formula_grammar.js";

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 60_000;
const UNSET = ".formula[data-source]:not([data-state])";
let temml = null;
let loading = null;
const waiting = new Set(); // what holds formulas that came before the library

/** Draw the formulas in `root` that are not drawn yet: now, or when the library is there. */
export function typeset(root) {
  const formulas = [...(root.querySelectorAll?.(UNSET) ?? [])];
  if (!formulas.length) return;
  if (temml) return draw(formulas);
  waiting.add(root);
  loading ??= load();
}

async function load() {
  for (let pauseMs = FIRST_PAUSE_MS; !temml; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
    try {
      temml = (await import("../vendor/temml.mjs")).default;
    } catch {
      await pause(pauseMs, "online");
    }
  }
  waiting.forEach(typeset);
  waiting.clear();
}

// All at once, since each call of the sanitizer has a price of its own.
function draw(formulas) {
  const markups = formulas.map((node) => markupOf(node.dataset.source));
  const places = DOMPurify.sanitize(markups.map((markup) => `<p>${markup}</p>`).join(""), ALLOWED).children;
  const maths = [...places].map((place) => place.querySelector("math"));
  formulas.forEach((node, i) => show(node, maths.length === formulas.length ? maths[i] : null));
}

function show(node, math) {
  node.dataset.state = math ? "drawn" : "source";
  if (!math) return;
  for (const styled of [math, ...math.querySelectorAll("[data-style]")]) restyle(styled);
  node.replaceChildren(math, make("span", { class: "formula-source", text: node.dataset.source }));
}

// No expansion without bound, nothing larger than a page, no deeper than the browser's layout likes it.
const OPTIONS = { throwOnError: true, trust: false, maxExpand: 1_000, maxSize: [40, 400] };
const DEFINES = /\\(?:[gex]?def|let|futurelet|(?:re|provide)?newcommand)(?![a-z])/i;
const DEEPEST = 100;
const MOST = 200_000; // characters of MathML

// The MathML, or "".
function markupOf(source) {
  const { latex, isDisplay } = readFormula(source);
  if (source.length > LONGEST_FORMULA || DEFINES.test(latex)) return "";
  let markup;
  try {
    markup = temml.renderToString(latex, { ...OPTIONS, displayMode: isDisplay });
  } catch {
    return ""; // not LaTeX, or some that is not known or not wanted here
  }
  if (markup.length > MOST || depthOf(markup) > DEEPEST) return "";
  return markup.replaceAll(' style="', ' data-style="');
}

function depthOf(markup) {
  let depth = 0;
  let deepest = 0;
  for (const [tag] of markup.matchAll(/<\/?[a-z]/g)) {
    depth += tag[1] === "/" ? -1 : 1;
    deepest = Math.max(deepest, depth);
  }
  return deepest;
}

const ALLOWED = {
  ALLOWED_TAGS:
    "p math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom menclose ms".split(" "),
  ALLOWED_ATTR:
    "accent accentunder class columnspan data-style depth display displaystyle fence form height largeop linethickness lspace mathbackground mathcolor mathvariant maxsize minsize movablelimits notation rowspan rspace scriptlevel separator stretchy symmetric voffset width".split(" "),
  ADD_URI_SAFE_ATTR: ["data-style"], // its colons are no addresses
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const STYLES = /^(?:padding|border)(?:-(?:top|right|bottom|left))?$|^(?:font-(?:weight|style)|margin-left|math-depth|text-align|width)$/;

// The page's policy takes style from scripts only, not from markup; nothing that could leave the formula is taken.
function restyle(node) {
  const declarations = (node.getAttribute("data-style") ?? "").split(";");
  node.removeAttribute("data-style");
  for (const [name, value] of declarations.map((each) => each.split(":"))) {
    if (name === "color") node.style.color = `color-mix(in srgb, ${value} 50%, var(--ink))`; // to be read on light and dark
    else if (STYLES.test(name)) node.style.setProperty(name, value);
  }
}
