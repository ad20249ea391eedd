// Scenes: objects with a location and an appearance; how they are kept and sent.

import { fromBase64, toBase64 } from "./pixels.js";

const STEP = 1 / 1000; // to which appearances are rounded in links

export function toFile(model, about, objects) {
  return JSON.stringify({
    model, canvas: about.canvas,
    objects: objects.map(({ row, column, appearance }) => ({ location: [row, column], appearance })),
  });
}

// Checked, since a file or a link may say anything.
export function fromFile(text) {
  let content;
  try { content = JSON.parse(text); } catch { throw new Error("This file is not a scene."); }
  const fits = content && typeof content.model === "string" && Array.isArray(content.objects)
    && content.objects.every((o) => isVector(o?.location, 2) && isVector(o?.appearance));
  if (!fits) throw new Error("This file is not a scene.");
  const objects = content.objects.map(({ location: [row, column], appearance }) => (
    { row: Math.round(row), column: Math.round(column), appearance }));
  return { model: content.model, objects };
}

function isVector(value, length = value?.length) {
  return Array.isArray(value) && value.length === length && value.every(Number.isFinite);
}

export function toLink(model, objects) {
  const parts = objects.map(({ row, column, appearance }) => {
    const numbers = Int16Array.from([row, column, ...appearance.map((z) => Math.round(z / STEP))]);
    return toBase64(new Uint8Array(numbers.buffer)).replaceAll("+", "-").replaceAll("/", "_")
      .replaceAll("=", "");
  });
  return `#${[encodeURIComponent(model), ...parts].join(",")}`;
}

export function fromLink(hash) {
  if (hash.length < 2) return null;
  try {
    const [model, ...parts] = hash.slice(1).split(",");
    const objects = parts.map((part) => {
      const bytes = fromBase64(part.replaceAll("-", "+").replaceAll("_", "/"));
      const [row, column, ...rounded] = new Int16Array(bytes.buffer);
      return { row, column, appearance: rounded.map((z) => z * STEP) };
    });
    return { model: decodeURIComponent(model), objects };
  } catch {
    throw new Error("The link does not hold a scene.");
  }
}

// What became of the others when a scene is taken apart again: each wanted object's nearest.
export function compare(about, wanted, found) {
  const left = [...found];
  let lost = 0, moved = 0, changed = 0, matched = 0;
  for (const object of wanted) {
    const distances = left.map((f) => Math.hypot(f.row - object.row, f.column - object.column));
    const nearest = distances.indexOf(Math.min(...distances));
    if (nearest < 0 || distances[nearest] > about.sprite_size / 2) { lost++; continue; }
    const [other] = left.splice(nearest, 1);
    moved += distances[nearest];
    const here = coordinates(about, object.appearance), there = coordinates(about, other.appearance);
    changed += Math.sqrt(here.reduce((s, v, k) => s + (v - there[k]) ** 2, 0) / here.length);
    matched++;
  }
  return { lost, extra: left.length, moved: moved / matched || 0, changed: changed / matched || 0 };
}

// Along the directions of largest variation, in standard deviations.
export function coordinates(about, appearance) {
  return about.directions.map((direction, k) => direction.reduce(
    (sum, d, i) => sum + d * (appearance[i] - about.mean[i]), 0) / about.spread[k]);
}
