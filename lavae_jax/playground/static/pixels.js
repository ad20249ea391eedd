// Images as arrays [height x width x channels]: encoding, composition, drawing, files.

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

// λ: the objects' sprites, each at its location, as the model composes them. With "over", the
// brightest channel of a sprite is its opacity, and later objects are in front.
export function compose(about, objects) {
  const [height, width] = about.canvas, c = about.channels, size = about.sprite_size;
  const hides = about.composition === "over";
  const sum = new Float32Array(height * width * c), half = size >> 1;
  for (const { row, column, sprite } of objects) {
    for (let y = 0; y < size; y++) {
      const r = row - half + y;
      if (r < 0 || r >= height) continue;
      for (let x = 0; x < size; x++) {
        const q = column - half + x;
        if (q < 0 || q >= width) continue;
        const from = (y * size + x) * c, to = (r * width + q) * c;
        const opacity = hides ? Math.max(...sprite.slice(from, from + c)) / 255 : 0;
        for (let k = 0; k < c; k++) sum[to + k] = sum[to + k] * (1 - opacity) + sprite[from + k] / 255;
      }
    }
  }
  return sum;
}

// The most likely binary image of a scene: pixels with a mean above one half are foreground.
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

// The box of a sprite's foreground pixels, relative to its location.
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

// Reads a file as the colours of an image that fits the model's canvas; the server preprocesses it.
export async function fromFile(about, file, invert) {
  if (file.size > LARGEST_FILE) throw new Error("This image is larger than 20 MB.");
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("The browser cannot read this file as an image.");
  });
  const [height, width] = about.canvas;
  const scale = Math.min(1, width / bitmap.width, height / bitmap.height);
  const w = Math.max(1, Math.round(bitmap.width * scale));
  const h = Math.max(1, Math.round(bitmap.height * scale));
  const surface = Object.assign(document.createElement("canvas"), { width: w, height: h });
  const context = surface.getContext("2d");
  context.fillRect(0, 0, w, h); // black behind transparent pixels
  context.drawImage(bitmap, 0, 0, w, h);
  const { data } = context.getImageData(0, 0, w, h);
  const colours = data.filter((_, i) => i % 4 !== 3);
  return { height: h, width: w, colours: toBase64(colours), invert };
}
