// A message as an element, from a row of the broker.  Everything in it is text: nothing that a producer sent becomes HTML.
const words = JSON.parse(document.getElementById("message-words").textContent);
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;
const BINARY_BYTES = 512, TEXT_MAX = 8192;

export function said(name, values = {}) {
  return words[name].replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

// Characters that cannot be seen as codes: a text could pretend to be another one with them.
export function visible(text) {
  return String(text).replace(HIDDEN, (char) => {
    if (char === "\n" || char === "\t") return char;
    const code = char.codePointAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

export function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

function element(name, kind, ...parts) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...parts.map((part) => part instanceof Node ? part : visible(part)));
  return made;
}

function isolated(text) {
  return element("bdi", "", text);
}

function pair(name, value, kind = "", tag = "span") {
  return element(tag, `pair ${kind}`.trim(), element("span", "", isolated(name)), " ", isolated(value));
}

function hexadecimal(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)).slice(0, BINARY_BYTES);
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const shown = row.map((byte) => byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".").join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}

function payload(row) {
  if ("leftOut" in row) return element("p", "hint", said("left_out", { reason: row.leftOut }));
  if (row.isNull) return element("p", "hint", said("null"));
  if (!row.size && !("value" in row)) return element("p", "hint", said("empty"));
  let kind = "text", text = row.payload;
  if ("value" in row) {
    kind = "value";
    text = typeof row.value === "string" ? row.value : JSON.stringify(row.value);
    if (text.length > 110 && typeof row.value !== "string") text = JSON.stringify(row.value, null, 2);
    text = text.slice(0, TEXT_MAX);
  } else if (text === undefined) {
    kind = "binary";
    text = hexadecimal(row.payloadBase64);
  }
  const made = element("pre", `payload ${kind}`, text);
  made.tabIndex = 0;
  return made;
}

function whole(row) {
  const [domain, rest] = row.topic.split("://");
  if (domain === "segment") return element("p", "hint", said("cut"));      // REST answers with no payloads of segments
  const [tenant, namespace, ...topic] = rest.split("/");
  const link = element("a", "", said("whole"));
  link.href = "/ops/v1/payload/" + [domain, tenant, namespace, topic.join("/"), row.id].map(encodeURIComponent).join("/");
  link.download = "";
  return element("p", "hint", said("cut"), " ", link);
}

export function card(row, showsTopic = false) {
  const head = element("header", "", element("code", "id", row.id), element("time", "", row.publishTime));
  if (showsTopic) head.append(element("span", "", isolated(row.topic.replace(/^persistent:\/\//, ""))));
  if ("key" in row) head.append(pair(said("key"), row.key));
  head.append(element("span", "soft", size(row.size)));
  if (row.batchSize) head.append(element("span", "soft", said("of_batch", { size: row.batchSize })));
  if ("deliverAt" in row) head.append(pair(said("deliver_at"), row.deliverAt, "due"));
  if ("eventTime" in row) head.append(pair(said("event_time"), row.eventTime));
  if ("orderingKey" in row) head.append(pair(said("ordering_key"), row.orderingKey));
  const from = element("span", "soft from", said("from"), " ", isolated(row.producer), ` ${row.sequenceId}`);
  if ("schemaVersion" in row) from.append(`, ${said("schema_version", { version: row.schemaVersion })}`);
  head.append(from);
  const made = element("article", "message", head);
  const properties = Object.entries(row.properties);
  if (properties.length) made.append(element("ul", "pairs", ...properties.map(([name, value]) => pair(name, value, "", "li"))));
  made.append(payload(row));
  if (row.cut || (!("payload" in row) && !("value" in row) && row.size > BINARY_BYTES)) made.append(whole(row));
  return made;
}
