// Elements. Texts are text nodes and never HTML: names of objects are chosen by tenants.

export const byId = (id) => document.getElementById(id);

// el returns an element. Children are elements or texts.
export function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") e.addEventListener(name, value);
    else e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== "" && c != null));
  return e;
}

// setText changes the text only if it differs, so that screen readers do not repeat it.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function notice(id, text) {
  setText(byId(id), text);
  byId(id).hidden = !text;
}

// keyed makes elements of items the children of a container, and retains those of the same key with their focus.
export function keyed(container, items, key, create, update) {
  const focused = document.activeElement;
  const wanted = new Set(items.map((item) => key(item)));
  const old = new Map();
  for (const e of Array.from(container.children)) {
    if (wanted.has(e.dataset.key) && !old.has(e.dataset.key)) old.set(e.dataset.key, e);
    else e.remove(); // before others are placed: an element that is moved loses the focus
  }
  let at = container.firstElementChild;
  for (const item of items) {
    let e = old.get(key(item));
    if (e) {
      old.delete(key(item));
    } else {
      e = create(item);
      e.dataset.key = key(item);
    }
    update(e, item);
    if (e === at) at = at.nextElementSibling;
    else container.insertBefore(e, at);
  }
  if (focused !== document.activeElement && container.contains(focused)) focused.focus({ preventScroll: true });
}

export const number = (n) => Number(n ?? 0).toLocaleString("en");

export const count = (n, what) => `${number(n)} ${what}${Number(n) === 1 ? "" : "s"}`;

// select returns the items whose text has the filter, the first of them, and a sentence with their numbers.
export function select(items, filter, textOf, what, most = 200) {
  const wanted = filter.trim().toLowerCase();
  const found = wanted ? items.filter((item) => textOf(item).toLowerCase().includes(wanted)) : items;
  const shown = found.slice(0, most);
  let text = `${number(found.length)} ${what}`;
  if (found.length < items.length) text = `${number(found.length)} of ${number(items.length)} ${what}`;
  if (shown.length < found.length) text += `, the first ${number(shown.length)} are shown: use the filter for others`;
  return { shown, text };
}
