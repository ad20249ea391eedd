// Images as arrays: [height x width x channels], and how they travel and look.

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

export function toBase64(bytes) {
  return btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
}

export function blank(about) {
  const [height, width] = about.canvas;
  return { height, width, channels: about.channels,
    pixels: new Uint8Array(height * width * about.channels) };
}

export function unpack({ height, width, channels, bits }) {
  const packed = fromBase64(bits);
  const pixels = new Uint8Array(height * width * channels);
  for (let i = 0; i < pixels.length; i++) pixels[i] = (packed[i >> 3] >> (7 - (i & 7))) & 1;
  return { height, width, channels, pixels };
}

export function pack({ height, width, channels, pixels }) {
  const packed = new Uint8Array(Math.ceil(pixels.length / 8));
  for (let i = 0; i < pixels.length; i++) if (pixels[i]) packed[i >> 3] |= 128 >> (i & 7);
  return { height, width, channels, bits: toBase64(packed) };
}

// λ: the sum of the objects' sprites, each on its location.
export function compose(about, objects) {
  const [height, width] = about.canvas, c = about.channels, size = about.sprite_size;
  const sum = new Float32Array(height * width * c), half = size >> 1;
  for (const { row, column, sprite } of objects) {
    for (let y = 0; y < size; y++) {
      const r = row - half + y;
      if (r < 0 || r >= height) continue;
      for (let x = 0; x < size; x++) {
        const q = column - half + x;
        if (q < 0 || q >= width) continue;
        const from = (y * size + x) * c, to = (r * width + q) * c;
        for (let k = 0; k < c; k++) sum[to + k] += sprite[from + k] / 255;
      }
    }
  }
  return sum;
}

// The picture that a scene most likely is, to be taken apart again.
export function lit(about, objects) {
  const [height, width] = about.canvas;
  const pixels = Uint8Array.from(compose(about, objects), (value) => (value > 0.5 ? 1 : 0));
  return { height, width, channels: about.channels, pixels };
}

export function paint(canvas, height, width, channels, value) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"), data = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    for (let k = 0; k < 3; k++) {
      data.data[4 * i + k] = 255 * Math.min(1, value(i * channels + (channels === 3 ? k : 0)));
    }
    data.data[4 * i + 3] = 255;
  }
  context.putImageData(data, 0, 0);
}

// The box of a sprite's lit pixels, relative to its location.
export function box(about, sprite) {
  const size = about.sprite_size, c = about.channels, half = size >> 1;
  let top = size, left = size, bottom = -1, right = -1;
  for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) {
    let most = 0;
    for (let k = 0; k < c; k++) most = Math.max(most, sprite[(y * size + x) * c + k]);
    if (most <= 127) continue;
    top = Math.min(top, y); bottom = Math.max(bottom, y);
    left = Math.min(left, x); right = Math.max(right, x);
  }
  if (bottom < 0) return { top: -half, left: -half, bottom: half, right: half };
  return { top: top - half, left: left - half, bottom: bottom - half, right: right - half };
}

const LARGEST_FILE = 20e6; // bytes

// A picture of any kind as a binary image of the model's canvas: bright objects on black.
export async function fromFile(about, file) {
  if (file.size > LARGEST_FILE) throw new Error("This image is larger than 20 MB.");
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("This file is not an image that the browser can read.");
  });
  const [height, width] = about.canvas;
  const scale = Math.min(1, width / bitmap.width, height / bitmap.height);
  const w = Math.max(1, Math.round(bitmap.width * scale));
  const h = Math.max(1, Math.round(bitmap.height * scale));
  const surface = Object.assign(document.createElement("canvas"), { width: w, height: h });
  const context = surface.getContext("2d");
  context.drawImage(bitmap, 0, 0, w, h);
  const { data } = context.getImageData(0, 0, w, h);
  const values = new Float32Array(w * h * about.channels);
  for (let i = 0; i < w * h; i++) {
    const [r, g, b, a] = data.subarray(4 * i, 4 * i + 4);
    const grey = (0.299 * r + 0.587 * g + 0.114 * b) * a / 255;
    if (about.channels === 1) values[i] = grey;
    else [r, g, b].forEach((v, k) => { values[3 * i + k] = v * a / 255; });
  }
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const inverted = mean > 127 && about.channels === 1;
  const threshold = otsu(values);
  const image = blank(about);
  const top = (height - h) >> 1, left = (width - w) >> 1;
  for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
    for (let k = 0; k < about.channels; k++) {
      const bright = values[(y * w + x) * about.channels + k] > threshold;
      image.pixels[((y + top) * width + x + left) * about.channels + k] = bright !== inverted;
    }
  }
  return image;
}

function otsu(values) {
  const histogram = new Float64Array(256);
  for (const v of values) histogram[Math.min(255, v | 0)]++;
  let total = 0;
  for (let t = 0; t < 256; t++) total += t * histogram[t];
  let below = 0, sum = 0, best = -1, first = 127, last = 127;
  for (let t = 0; t < 256; t++) {
    below += histogram[t];
    sum += t * histogram[t];
    const above = values.length - below;
    if (!below || !above) continue;
    const between = below * above * (sum / below - (total - sum) / above) ** 2;
    if (between > best * (1 + 1e-9)) { best = between; first = t; last = t; }
    else if (between >= best * (1 - 1e-9)) last = t;
  }
  return (first + last) / 2 + 0.5;
}
