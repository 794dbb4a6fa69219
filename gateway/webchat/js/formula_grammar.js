// Where formulas stand in markdown. Models write them as in LaTeX; what stands between the marks is no markdown.

/** Longer ones are shown as they were written: nobody reads them, and their cost stays small. */
export const LONGEST_FORMULA = 4_000; // characters

const NEVER = 0; // these marks enclose no formula
const OPEN = -1; // the end of the text comes first: the rest may still be on its way

const CLOSING = { "$$": "$$", "\\(": "\\)", "\\[": "\\]" };
const INLINE = /^(?:\$\$|\\[([])/;
const BLOCK = /^ {0,3}(?:\$\$|\\\[|\\begin\{((?:equation|align|alignat|gather|multline)\*?)\})/;
const STEP = /\\[^]|\$\$|\n[ \t]*\n|`/g;

// Where the formula that opens before `from` ends. A blank line ends every hope, so none can take the rest of an answer.
function endOf(source, from, closing) {
  STEP.lastIndex = from;
  for (let step = STEP.exec(source); step; step = STEP.exec(source)) {
    if (step.index - from > LONGEST_FORMULA) return NEVER;
    if (source.startsWith(closing, step.index)) return source.slice(from, step.index).trim() ? step.index + closing.length : NEVER;
    if (!step[0].startsWith("\\") || /[()[\]]/.test(step[0])) return NEVER;
  }
  return source.length - from > LONGEST_FORMULA ? NEVER : OPEN;
}

// A single dollar must touch what it encloses, and that must not read like prices ("$5 and 10$") or variables of a shell.
const DOLLARS = /^\$(?!\s)((?:\\.|[^\\$\n`])+)(?<!\s)\$(?![\d$])/;
const PROSE = /^(?:\d|[A-Z_]{2,}\b)[^\\^_{}=<>]*\s[a-z]{2,}(?:\s|$)/i;
const HALF = /[^\w)\]}'!]$/; // of "$HOME/$USER"

// Of restaurants: "from $$ to $$$".
const isPriceRange = (source, end, before) =>
  before === "$" || source[end] === "$" || /^[^\\^_=<>{}+*/]*\s[^\\^_=<>{}+*/]*$/.test(source.slice(2, end - 2));

function endOfDollars(source, before) {
  const found = /[\w$]/.test(before) ? null : DOLLARS.exec(source);
  if (!found || PROSE.test(found[1])) return NEVER;
  const end = found[0].length;
  return /[a-z]/i.test(source.charAt(end)) && HALF.test(found[1]) ? NEVER : end;
}

let growing = null; // the text that is being cut, if more of it will come

/** Do `cut()` with formulas that are still open at the end of `source` taken for such: they show as text until they close. */
export function whileGrowing(source, cut) {
  growing = source.trimEnd();
  try {
    return cut();
  } finally {
    growing = null;
  }
}

function token(type, source, end, formula) {
  if (end > 0) return { type, raw: source.slice(0, end), formula: formula.trim() };
  const isLast = end === OPEN && growing?.endsWith(source.trimEnd());
  return isLast ? { type, raw: source, formula: source.trimEnd(), isOpen: true } : undefined;
}

const inline = {
  name: "formula",
  level: "inline",
  start: (source) => /\$|\\[([]/.exec(source)?.index,
  tokenizer(source, tokens) {
    const marks = INLINE.exec(source)?.[0];
    const before = tokens.at(-1)?.raw.at(-1) ?? "";
    const end = marks ? endOf(source, marks.length, CLOSING[marks]) : endOfDollars(source, before);
    if (marks === "$$" && (end === OPEN || isPriceRange(source, end, before))) return undefined;
    return token("formula", source, end, source.slice(0, end));
  },
};

// On lines of its own, where "- b" is no item of a list and "# b" no heading.
const block = {
  name: "formulaBlock",
  level: "block",
  start: (source) => /\n {0,3}(?:\$\$|\\\[|\\begin\{)/.exec(source.slice(0, LONGEST_FORMULA))?.index,
  tokenizer(source) {
    const [opening, environment] = BLOCK.exec(source) ?? [];
    if (!opening) return undefined;
    const end = endOf(source, opening.length, environment ? `\\end{${environment}}` : CLOSING[opening.trimStart()]);
    if (end <= 0) return token("formulaBlock", source, end);
    const rest = /^[ \t]*(?:\n|$)/.exec(source.slice(end));
    return rest ? token("formulaBlock", source, end + rest[0].length, source.slice(0, end)) : undefined;
  },
};

/** Extensions for marked; `render(formula, isOpen)` gives the HTML of a formula with its marks. */
export const formulaExtensions = (render) => [
  { ...inline, renderer: ({ formula, isOpen }) => render(formula, isOpen) },
  { ...block, renderer: ({ formula, isOpen }) => `<p>${render(formula, isOpen)}</p>` },
];

/** The LaTeX between the marks, and whether it stands on lines of its own. */
export function readFormula(formula) {
  if (formula.startsWith("\\begin")) return { latex: formula, isDisplay: true };
  const width = INLINE.test(formula) ? 2 : 1;
  return { latex: formula.slice(width, -width), isDisplay: width === 2 && !formula.startsWith("\\(") };
}
