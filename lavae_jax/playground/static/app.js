// The page: an image, the scene that the model infers from it, and edits of that scene.

import { blank, box, compose, fromBase64, fromFile as imageFromFile, lit, pack, paint, unpack }
  from "./pixels.js";
import * as scenes from "./scenes.js";
import { ask, models, onConnection } from "./server.js";

const $ = (id) => document.getElementById(id);
const HIGHLIGHT = "#ff9a1f", OTHERS = "#57b8ff";
const PARTS = { log_likelihood: "−log p(x | z)", kl_count: "KL of the count",
  kl_location: "KL of the locations", kl_appearance: "KL of the appearances" };
const COLOURS = ["blue", "green", "cyan", "red", "magenta", "yellow", "white"];

let abouts = {}; // descriptions of the models, by name
let about = null; // description of the chosen model
let image = null; // the image that is decomposed
let first = null; // the scene inferred from it
let unedited = null; // a promise of the scene inferred from the rendering of `first`
let again = null; // the scene inferred from the edited rendering; null until it is known
let others = null; // how the objects that were not edited changed
let original = []; // objects before all edits
let objects = []; // of the edited scene: row, column, appearance, sprite
let selected = -1;
let past = [], future = []; // lists of objects
let colour = 6; // bits of blue, green and red, less 1
let shown = 0, asked = 0; // counters of scenes and of edits: answers to older ones are ignored
let busy = false; // true while an image is decomposed: the old scene cannot be edited then

// --- messages ------------------------------------------------------------------------

function say(text) { $("status").textContent = text; }

function complain(error) {
  $("alert").textContent = error.message ?? String(error);
  $("alert").hidden = false;
}

function calm() { $("alert").hidden = true; }

// Runs an action, and shows its errors to the user.
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof Stale)) complain(error);
  }
}

class Stale extends Error {} // an answer that is out of date

onConnection({
  lost: () => { say("Connection lost"); complain(new Error("The server does not answer. The page reconnects as soon as it does.")); },
  back: () => attempt(async () => {
    const [{ name }] = await refreshModels();
    if (!about || !abouts[about.name]) return start(name);
    calm();
    say("Reconnected");
    if (!first && image) await show(image);
    else if (first && !again) await edited();
  }),
});

// --- the scene -----------------------------------------------------------------------

const seed = () => Math.floor(Math.random() * 2 ** 31);
const asObject = ({ location: [row, column], appearance, sprite, score }) => (
  { row, column, appearance, score, sprite: fromBase64(sprite) });

async function takeApart(picture) {
  const answer = await ask("infer", { model: about.name, image: pack(picture) });
  return { ...answer, objects: answer.objects.map(asObject) };
}

// Shows an image and its objects: those that the model infers, or those that it was rendered from.
async function show(newImage, known = null) {
  calm();
  image = newImage;
  paintInput();
  const number = ++shown;
  asked++;
  busy = true;
  drag = null;
  say("Decomposing …");
  const started = performance.now();
  try {
    const answer = await takeApart(image);
    if (number !== shown) throw new Stale();
    first = again = answer;
  } finally {
    if (number === shown) busy = false;
  }
  original = (known ?? first.objects).map((object) => ({ ...object }));
  objects = original.map((object) => ({ ...object }));
  others = null;
  past = [];
  future = [];
  select(objects.length ? 0 : -1);
  say(`Decomposed in ${Math.round(performance.now() - started)} ms`);
  draw();
  unedited = takeApart(lit(about, objects));
  unedited.catch(() => {}); // the next edit reports the error
}

async function newScene(kind) {
  const count = Number($("count").value), { name } = about;
  const answer = await ask("scene", { model: name, kind, count, seed: seed() });
  if (about.name !== name) throw new Stale();
  await show(unpack(answer.image));
}

// --- edits ---------------------------------------------------------------------------

function remember() {
  past.push(objects.map((object) => ({ ...object })));
  future = [];
}

async function edited() {
  const number = ++asked;
  again = others = null;
  draw();
  await new Promise((resolve) => setTimeout(resolve, 60)); // a few edits in a row are one request
  if (number !== asked) throw new Stale();
  const answer = await takeApart(lit(about, objects));
  const before = await unedited.catch(() => (unedited = takeApart(lit(about, original))));
  if (number !== asked) throw new Stale();
  again = answer;
  others = scenes.compare(about, original, objects, before.objects, again.objects);
  drawThoughts();
  drawStage(); // for the heat map
}

function edit(change) {
  if (busy) return Promise.resolve();
  remember();
  change();
  return edited();
}

function travel(from, to) {
  if (busy || !from.length) return Promise.resolve();
  to.push(objects);
  objects = from.pop();
  select(Math.min(selected, objects.length - 1));
  return edited();
}

const clampRow = (row) => Math.max(0, Math.min(about.canvas[0] - 1, Math.round(row)));
const clampColumn = (column) => Math.max(0, Math.min(about.canvas[1] - 1, Math.round(column)));

async function addOne() {
  const { appearance, sprite } = await ask("appearance",
    { model: about.name, kind: "other", seed: seed() });
  const [row, column] = emptiest();
  await edit(() => {
    objects.push({ row, column, appearance, sprite: fromBase64(sprite), score: 1 });
    select(objects.length - 1);
  });
}

// The location farthest from all objects; of equally far ones, the one nearest to the middle.
function emptiest() {
  const [height, width] = about.canvas, half = about.sprite_size >> 1;
  if (!objects.length) return [height >> 1, width >> 1];
  let best = [height >> 1, width >> 1], farthest = -1;
  for (let row = half; row < height - half; row++) for (let column = half; column < width - half; column++) {
    const near = Math.min(...objects.map((o) => Math.hypot(o.row - row, o.column - column)));
    const middle = -0.01 * Math.hypot(row - height / 2, column - width / 2);
    if (near + middle > farthest) { farthest = near + middle; best = [row, column]; }
  }
  return best;
}

function copyOne() {
  const [row, column] = emptiest();
  return edit(() => {
    objects.push({ ...objects[selected], row, column });
    select(objects.length - 1);
  });
}

function deleteOne() {
  return edit(() => {
    objects.splice(selected, 1);
    select(Math.min(selected, objects.length - 1));
  });
}

function swap(i, j) {
  const { row, column } = objects[i];
  Object.assign(objects[i], { row: objects[j].row, column: objects[j].column });
  Object.assign(objects[j], { row, column });
}

async function swapChosen() {
  const other = $("swap-with").value;
  if (other === "") throw new Error("Choose an object to swap with.");
  await edit(() => swap(selected, Number(other)));
}

// Sets the appearance of the selected object; `settled` is true once the user releases the slider.
let looks = 0;
async function setAppearance(appearance, settled) {
  const number = ++looks, object = objects[selected];
  const answer = await ask("appearance", { model: about.name, kind: "decode", appearance });
  if (number !== looks || !objects.includes(object)) throw new Stale();
  Object.assign(object, { appearance, sprite: fromBase64(answer.sprite) });
  if (settled) { drawSliders(); await edited(); } else { drawStage(); drawObjects(); }
}

async function replaceLook(kind) {
  const object = objects[selected], place = [object.row, object.column];
  const more = kind === "like" ? { image: pack(lit(about, objects)), location: place } : {};
  const answer = await ask("appearance", { model: about.name, kind, seed: seed(), ...more });
  if (!objects.includes(object)) throw new Stale();
  await edit(() => {
    Object.assign(object, { appearance: answer.appearance, sprite: fromBase64(answer.sprite) });
    drawLook();
  });
}

// --- drawing -------------------------------------------------------------------------

function draw() {
  drawStage();
  drawObjects();
  drawThoughts();
  $("undo").disabled = !past.length;
  $("redo").disabled = !future.length;
  $("copy").disabled = $("delete").disabled = selected < 0;
  $("found").textContent = `– ${objects.length} ${objects.length === 1 ? "object" : "objects"}`;
}

function paintInput() {
  paint($("input"), image.height, image.width, image.channels, (i) => image.pixels[i]);
}

let scheduled = false;
function drawStage() { // at the screen's refresh rate
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; paintStage(); });
}

const SCALE = 8; // of the stage's canvas, so that boxes are thin
function paintStage() {
  const [height, width] = about.canvas, sum = compose(about, objects);
  const small = document.createElement("canvas");
  paint(small, height, width, about.channels, (i) => sum[i]);
  const stage = $("stage");
  stage.width = SCALE * width;
  stage.height = SCALE * height;
  const context = stage.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, stage.width, stage.height);
  if ($("heat").checked && again) paintHeat(context, again.heat);
  if (!$("boxes").checked) return;
  context.font = `bold ${1.6 * SCALE}px system-ui, sans-serif`;
  objects.forEach((object, k) => {
    const { top, left, bottom, right } = box(about, object.sprite);
    const x = SCALE * (object.column + left) - 3, y = SCALE * (object.row + top) - 3;
    context.strokeStyle = context.fillStyle = k === selected ? HIGHLIGHT : OTHERS;
    context.lineWidth = k === selected ? 3 : 1.5;
    context.strokeRect(x, y, SCALE * (right - left + 1) + 6, SCALE * (bottom - top + 1) + 6);
    context.fillText(String(k + 1), x, y < 14 ? y + SCALE * (bottom - top + 1) + 22 : y - 4);
  });
}

function paintHeat(context, heat) {
  const probabilities = fromBase64(heat), [, width] = about.canvas;
  probabilities.forEach((p, i) => {
    if (!p) return;
    context.fillStyle = `rgba(255, 60, 90, ${Math.sqrt(p / 255)})`;
    context.fillRect(SCALE * (i % width), SCALE * Math.floor(i / width), SCALE, SCALE);
  });
}

function drawObjects() {
  const list = $("objects"), size = about.sprite_size;
  while (list.children.length > objects.length) list.lastChild.remove();
  while (list.children.length < objects.length) {
    const button = document.createElement("button");
    button.className = "object";
    button.setAttribute("role", "option");
    button.append(document.createElement("canvas"), document.createElement("span"));
    const k = list.children.length;
    button.addEventListener("click", () => { select(k); draw(); });
    list.append(button);
  }
  objects.forEach((object, k) => {
    const button = list.children[k], [canvas, label] = button.children;
    paint(canvas, size, size, about.channels, (i) => object.sprite[i] / 255);
    label.textContent = String(k + 1);
    button.title = object.score < 1 ? `found with a probability of ${object.score}` : "";
    button.setAttribute("aria-selected", String(k === selected));
    button.setAttribute("aria-label",
      `Object ${k + 1} at row ${object.row}, column ${object.column}`);
  });
}

function select(k) {
  selected = k;
  drawLook();
}

function drawLook() {
  $("look").hidden = selected < 0;
  if (selected < 0) return;
  $("which").textContent = String(selected + 1);
  drawSliders();
  for (const id of ["swap-with", "morph-with"]) {
    const choices = objects.map((_, k) => k).filter((k) => k !== selected)
      .map((k) => new Option(`object ${k + 1}`, k));
    $(id).replaceChildren(new Option("…", ""), ...choices);
  }
  stopMorphing();
}

function drawSliders() {
  const values = scenes.coordinates(about, objects[selected].appearance);
  document.querySelectorAll("#sliders input").forEach((slider, k) => { slider.value = values[k]; });
}

function makeSliders() {
  $("sliders").replaceChildren(...about.directions.flatMap((_, k) => {
    const label = document.createElement("label"), slider = document.createElement("input");
    label.textContent = `direction ${k + 1}`;
    label.htmlFor = slider.id = `slider-${k}`;
    Object.assign(slider, { type: "range", min: -3, max: 3, step: 0.05 });
    let begun = false;
    const move = (settled) => attempt(() => {
      stopMorphing();
      if (!begun) { remember(); begun = true; }
      if (settled) begun = false;
      const { appearance } = objects[selected];
      const change = slider.value - scenes.coordinates(about, appearance)[k];
      const moved = appearance.map(
        (z, i) => z + change * about.spread[k] * about.directions[k][i]);
      return setAppearance(moved, settled);
    });
    slider.addEventListener("input", () => move(false));
    slider.addEventListener("change", () => move(true));
    return [label, slider];
  }));
}

function drawThoughts() {
  if (!first) return;
  const row = (name, value) => {
    const line = document.createElement("tr"), head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    line.append(head, ...[first, again].map((thought) => Object.assign(
      document.createElement("td"), { textContent: thought ? value(thought) : "…" })));
    return line;
  };
  const nats = (v) => v.toFixed(1);
  $("thoughts").replaceChildren(
    row("−log p(x) ≤", (t) => nats(-t.log_p)),
    ...Object.entries(PARTS).map(([key, name]) => row(name,
      (t) => nats(key === "log_likelihood" ? -t.terms[key] : t.terms[key]))),
    row("objects found", (t) => t.objects.length));
  $("others").textContent = others ? described(others)
    : again ? "Edit an object to see how the others change." : "…";
}

function described({ lost, extra, alone, moved, changed }) {
  const found = lost ? `In the edited image, ${lost} of ${objects.length} objects are not found`
    : "In the edited image, all objects are found";
  const more = extra ? `, and ${extra} false ${extra === 1 ? "detection" : "detections"}` : "";
  const rest = alone ? ` The inferred locations of unedited objects (${alone}) changed by ${moved.toFixed(2)} pixels`
    + ` on average, and their appearances by ${changed.toFixed(2)} standard deviations.` : "";
  return `${found}${more}.${rest}`;
}

// --- the pointer ---------------------------------------------------------------------

function place(event, canvas) {
  const { left, top, width, height } = canvas.getBoundingClientRect();
  return { row: (event.clientY - top) / height * about.canvas[0],
    column: (event.clientX - left) / width * about.canvas[1] };
}

function objectAt({ row, column }, except = -1) {
  let best = -1, nearest = Infinity;
  objects.forEach((object, k) => {
    const { top, left, bottom, right } = box(about, object.sprite);
    const inside = row >= object.row + top - 1 && row < object.row + bottom + 2
      && column >= object.column + left - 1 && column < object.column + right + 2;
    const distance = Math.hypot(object.row - row, object.column - column);
    if (inside && k !== except && distance < nearest) { nearest = distance; best = k; }
  });
  return best;
}

let drag = null;
$("stage").addEventListener("pointerdown", (event) => {
  if (!about || busy) return;
  const at = place(event, $("stage")), k = objectAt(at);
  select(k);
  draw();
  if (k < 0) return;
  event.preventDefault();
  $("stage").focus();
  $("stage").setPointerCapture(event.pointerId);
  const { row, column } = objects[k];
  drag = { k, at, row, column, before: objects.map((object) => ({ ...object })) };
  $("stage").classList.add("dragging");
});
$("stage").addEventListener("pointermove", (event) => {
  if (!drag) return;
  const at = place(event, $("stage")), object = objects[drag.k];
  object.row = clampRow(drag.row + at.row - drag.at.row);
  object.column = clampColumn(drag.column + at.column - drag.at.column);
  drawStage();
});
const drop = (event) => {
  if (!drag) return;
  const { k, row, column, before } = drag;
  drag = null;
  $("stage").classList.remove("dragging");
  const other = event.shiftKey ? objectAt(place(event, $("stage")), k) : -1;
  if (other >= 0) { Object.assign(objects[k], { row, column }); swap(k, other); }
  if (objects[k].row === row && objects[k].column === column) { draw(); return; }
  past.push(before);
  future = [];
  attempt(edited);
};
$("stage").addEventListener("pointerup", drop);
$("stage").addEventListener("pointercancel", drop);

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
$("stage").addEventListener("keydown", (event) => {
  if (event.key === "Tab" && objects.length) {
    const next = selected + (event.shiftKey ? -1 : 1);
    if (next < 0 || next >= objects.length) return; // Tab moves on to the next control
    event.preventDefault();
    select(next);
    draw();
    tell();
  } else if (ARROWS[event.key] && selected >= 0) {
    event.preventDefault();
    const [down, right] = ARROWS[event.key].map((v) => v * (event.shiftKey ? 5 : 1));
    attempt(() => edit(() => {
      const object = objects[selected];
      object.row = clampRow(object.row + down);
      object.column = clampColumn(object.column + right);
      tell();
    }));
  } else if (["Delete", "Backspace"].includes(event.key) && selected >= 0) {
    event.preventDefault();
    attempt(deleteOne);
    tell("Deleted; ");
  }
});

// Announces the location of the selected object to screen readers.
function tell(before = "") {
  const object = objects[selected];
  say(`${before}${object ? `object ${selected + 1} at row ${object.row}, column ${object.column}` : "no object"}`);
}

let pen = null;
function stroke(event) {
  const { row, column } = place(event, $("input"));
  const from = pen.last ?? { row, column };
  const steps = Math.ceil(Math.max(Math.abs(row - from.row), Math.abs(column - from.column), 1));
  for (let s = 0; s <= steps; s++) {
    const r = Math.floor(from.row + (row - from.row) * s / steps);
    const c = Math.floor(from.column + (column - from.column) * s / steps);
    if (r < 0 || c < 0 || r >= image.height || c >= image.width) continue;
    for (let k = 0; k < image.channels; k++) {
      // Colours are made of the bits blue, green and red; channels are red, green and blue.
      const on = image.channels === 1 || ((colour + 1) >> (2 - k)) & 1;
      image.pixels[(r * image.width + c) * image.channels + k] = pen.erase ? 0 : Number(on);
    }
  }
  pen.last = { row, column };
  paintInput();
}
$("input").addEventListener("pointerdown", (event) => {
  if (!image) return;
  event.preventDefault();
  $("input").setPointerCapture(event.pointerId);
  image = { ...image, pixels: image.pixels.slice() };
  pen = { last: null, erase: $("erase").checked || event.shiftKey || event.button === 2 };
  stroke(event);
});
$("input").addEventListener("contextmenu", (event) => event.preventDefault());
$("input").addEventListener("pointermove", (event) => { if (pen) stroke(event); });
for (const end of ["pointerup", "pointercancel"]) {
  $("input").addEventListener(end, () => {
    if (!pen) return;
    pen = null;
    attempt(() => show(image));
  });
}

// --- files, links and the clipboard --------------------------------------------------

const openImage = (file) => attempt(async () => {
  const raw = await imageFromFile(about, file, $("invert").checked);
  const { image } = await ask("preprocess", { model: about.name, ...raw });
  show(unpack(image));
});
$("file").addEventListener("change", ({ target }) => {
  if (target.files[0]) openImage(target.files[0]);
  target.value = "";
});
// On the whole page: otherwise, the browser would leave the page to open a dropped file.
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.remove("over"); });
}
document.addEventListener("drop", (event) => {
  const [file] = event.dataTransfer.files;
  if (file) openImage(file);
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((f) => f.type.startsWith("image/"));
  if (file) openImage(file);
});

function download(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function savePicture() {
  const [height, width] = about.canvas, sum = compose(about, objects);
  const canvas = document.createElement("canvas");
  paint(canvas, height, width, about.channels, (i) => sum[i]);
  canvas.toBlob((blob) => download("scene.png", blob));
}

async function restore({ model, objects: kept }) {
  while (coming.includes(model)) {
    say(`${model} is still warming up …`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  if (!abouts[model]) throw new Error(`The scene was made with ${model}, which this server does not have.`);
  choose(model);
  if (kept.length > about.slots) throw new Error(`A scene has at most ${about.slots} objects.`);
  if (kept.some(({ appearance }) => appearance.length !== about.latent_size)) {
    throw new Error("The scene was made with a different model of the same name.");
  }
  const looks = await Promise.all(kept.map(({ appearance }) => ask("appearance",
    { model, kind: "decode", appearance })));
  const restored = kept.map((object, k) => ({ row: clampRow(object.row), score: 1,
    column: clampColumn(object.column), appearance: object.appearance,
    sprite: fromBase64(looks[k].sprite) }));
  await show(lit(about, restored), restored);
}

$("load-scene").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  if (file) attempt(async () => restore(await scenes.fromFile(file)));
  target.value = "";
});

async function copyLink() {
  history.replaceState(null, "", scenes.toLink(about.name, objects));
  await navigator.clipboard?.writeText(location.href).catch(() => {});
  say("The link is in the address bar; it is also copied to the clipboard if the browser allows it");
}

window.addEventListener("hashchange", () => attempt(async () => {
  const kept = scenes.fromLink(location.hash);
  if (kept) await restore(kept);
}));

// --- controls ------------------------------------------------------------------------

const buttons = {
  fresh: () => newScene("fresh"), prior: () => newScene("prior"), clear: () => show(blank(about)),
  undo: () => travel(past, future), redo: () => travel(future, past),
  add: addOne, copy: copyOne, delete: deleteOne, swap: swapChosen,
  like: () => replaceLook("like"), other: () => replaceLook("other"),
  "save-picture": savePicture, link: copyLink,
  "save-scene": () => download("scene.json",
    new Blob([scenes.toFile(about.name, about, objects)], { type: "application/json" })),
};
for (const [id, action] of Object.entries(buttons)) {
  $(id).addEventListener("click", () => { calm(); attempt(async () => action()); });
}
for (const id of ["boxes", "heat"]) $(id).addEventListener("change", drawStage);
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
  event.preventDefault();
  attempt(() => (event.shiftKey ? travel(future, past) : travel(past, future)));
});

let morphed = null; // the appearance that a morph started from
function stopMorphing() {
  morphed = null;
  $("morph").value = 0;
}
$("morph-with").addEventListener("change", stopMorphing);
for (const name of ["input", "change"]) {
  $("morph").addEventListener(name, ({ target }) => attempt(async () => {
    if ($("morph-with").value === "") return;
    const into = objects[Number($("morph-with").value)].appearance;
    if (!morphed) { remember(); morphed = objects[selected].appearance; }
    const t = Number(target.value), from = morphed;
    await setAppearance(from.map((z, i) => (1 - t) * z + t * into[i]), name === "change");
  }));
}

// --- the start -----------------------------------------------------------------------

function choose(name) {
  if (about?.name === name) return;
  about = abouts[name];
  $("model").value = name;
  $("fresh").disabled = !about.fresh;
  makeSliders();
  $("colours").hidden = about.channels === 1;
  shown++; // pending answers are from another model
  asked++;
  busy = false;
  past = [];
  future = [];
  first = again = others = image = null;
  objects = original = [];
  select(-1);
}

let coming = []; // models that are warming up

async function refreshModels() {
  const { models: known, coming: later } = await models();
  coming = later;
  abouts = Object.fromEntries(known.map((model) => [model.name, model]));
  const options = known.map(({ name }) => new Option(name, name));
  const disabled = coming.map((name) => new Option(`${name} (warming up)`, name));
  disabled.forEach((option) => { option.disabled = true; });
  $("model").replaceChildren(...options, ...disabled);
  if (about) $("model").value = about.name;
  if (coming.length) setTimeout(() => attempt(refreshModels), 2000);
  return known;
}

async function start(name) {
  choose(name);
  await newScene(about.fresh ? "fresh" : "prior");
}

$("model").addEventListener("change", ({ target }) => attempt(() => start(target.value)));

COLOURS.forEach((name, k) => {
  const button = Object.assign(document.createElement("button"), { title: name });
  button.style.background = name;
  button.setAttribute("role", "radio");
  button.setAttribute("aria-label", name);
  button.setAttribute("aria-checked", String(k === colour));
  button.addEventListener("click", () => {
    colour = k;
    [...$("colours").children].forEach((other, i) => other.setAttribute("aria-checked", String(i === k)));
  });
  $("colours").append(button);
});

attempt(async () => {
  const [{ name }] = await refreshModels(), kept = scenes.fromLink(location.hash);
  await (kept ? restore(kept) : start(name));
});
