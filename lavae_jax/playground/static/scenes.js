// Scenes: objects with a location and an appearance, in files and links.

import { fromBase64, toBase64 } from "./pixels.js";

const LARGEST_FILE = 1e6; // bytes
const STEP = 1 / 1000; // to which appearances are rounded in links

export function toFile(model, about, objects) {
  return JSON.stringify({
    model, canvas: about.canvas,
    objects: objects.map(({ row, column, appearance }) => ({ location: [row, column], appearance })),
  });
}

// The content is checked, since a file may contain anything.
export async function fromFile(file) {
  let content;
  if (file.size > LARGEST_FILE) throw new Error("This file is too large for a scene.");
  try { content = JSON.parse(await file.text()); } catch { throw new Error("This file is not a scene."); }
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
    throw new Error("The link does not contain a scene.");
  }
}

// How an edit changed the other objects: compares the scenes inferred from the renderings before and
// after it.
export function compare(about, original, objects, before, after) {
  const found = matched(about, objects, after);
  const was = matched(about, objects, before);
  const alone = objects.flatMap((object, k) => (
    found[k] && was[k] && original.some((o) => isSame(o, object)) ? [[was[k], found[k]]] : []));
  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length || 0;
  return {
    lost: found.filter((f) => !f).length,
    extra: after.length - found.filter(Boolean).length,
    alone: alone.length,
    moved: mean(alone.map(([a, b]) => Math.hypot(a.row - b.row, a.column - b.column))),
    changed: mean(alone.map(([a, b]) => distance(about, a, b))),
  };
}

const isSame = (a, b) => a.row === b.row && a.column === b.column
  && a.appearance.every((z, i) => z === b.appearance[i]);

function distance(about, a, b) {
  const here = coordinates(about, a.appearance), there = coordinates(about, b.appearance);
  return Math.sqrt(here.reduce((sum, v, k) => sum + (v - there[k]) ** 2, 0) / here.length);
}

// For each object, the nearest inferred one within half a sprite; each inferred one is used once.
function matched(about, objects, found) {
  const left = [...found];
  return objects.map((object) => {
    const distances = left.map((f) => Math.hypot(f.row - object.row, f.column - object.column));
    const nearest = distances.indexOf(Math.min(...distances));
    return nearest < 0 || distances[nearest] > about.sprite_size / 2
      ? null : left.splice(nearest, 1)[0];
  });
}

// An appearance along the directions of largest variation, in standard deviations.
export function coordinates(about, appearance) {
  return about.directions.map((direction, k) => direction.reduce(
    (sum, d, i) => sum + d * (appearance[i] - about.mean[i]), 0) / about.spread[k]);
}
