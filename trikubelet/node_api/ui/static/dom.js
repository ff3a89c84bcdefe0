// Elements and texts. Whatever comes from pods goes on the screen through here, as text nodes and never as HTML.

/** An element with properties and children; children that are strings become text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** JSON of this page's server. Throws an Error whose message is the server's line. */
export async function ask(...segments) {
  const answer = await fetch(address(...segments), { signal: AbortSignal.timeout(30_000) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text.trim() || `the server answered ${answer.status}`);
  return JSON.parse(text);
}

export function address(...segments) {
  return `api/${segments.map(encodeURIComponent).join("/")}`;
}

/** Seconds for people: `7 s`, `3 min`, `2 h 5 min`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 120) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString([], { hour12: false });
}
