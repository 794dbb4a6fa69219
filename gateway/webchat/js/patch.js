// Make one tree like another by touching only what differs: what stays the same keeps its nodes, and with them selections,
// sideways scrolling and the browser's layout.

/** Give `old` the children of `fresh`, which is used up. Listeners of nodes that stay are those of `old`. */
export function patch(old, fresh) {
  const had = [...old.childNodes];
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, i) => (had[i] ? become(had[i], node) : old.append(node)));
  for (const node of had.slice(wanted.length)) node.remove();
}

function become(old, node) {
  if (old.isEqualNode(node) || isMadeOf(old, node.dataset?.source)) return;
  if (old.nodeName !== node.nodeName) old.replaceWith(node);
  else if (old.nodeType === Node.TEXT_NODE) retext(old, node.data);
  else {
    for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    patch(old, node);
  }
}

// A formula that is drawn already is not what it was made from.
const isMadeOf = (node, source) => source !== undefined && node.dataset?.source === source;

function retext(old, text) {
  if (text.startsWith(old.data)) old.appendData(text.slice(old.data.length));
  else old.data = text;
}
