"use strict";
/* A graph on a canvas, laid out in a worker: boxes with labels, curves between them. */

class Graph extends Drawing {
  constructor(box, { choose, describe }) {
    super(box, { choose, describe });
    this.nodes = []; this.edges = [];
    this.scale = 1; this.x = 0; this.y = 0;
    this.begin();
  }

  /* nodes: {id, label, kind, ...}; edges: [from, to] by id. Resolves when they are laid out. */
  show(nodes, edges) {
    if (this.worker) this.worker.terminate();
    const measure = this.context;
    measure.font = "12px system-ui, sans-serif";
    for (const node of nodes) { node.w = Math.min(measure.measureText(node.label).width, 260) + 20; node.h = 26; }
    const worker = this.worker = new Worker("layout.js");
    return new Promise((resolve, reject) => {
      worker.onerror = event => reject(new Error(event.message));
      worker.onmessage = ({ data }) => {
        nodes.forEach((node, n) => { [node.x, node.y] = data.places[n]; });
        const known = new Map(nodes.map(node => [node.id, node]));
        this.nodes = nodes;
        this.edges = edges.map(([a, b]) => [known.get(a), known.get(b)]).filter(([a, b]) => a && b);
        this.fit();
        worker.terminate();
        resolve(data);
      };
      worker.postMessage({ nodes: nodes.map(({ id, w, h }) => ({ id, w, h })), edges });
    });
  }

  fit() {
    if (!this.nodes.length) { this.draw(); return; }
    const xs = this.nodes.map(n => n.x), ys = this.nodes.map(n => n.y);
    const bounds = (values, half) => values.reduce(([least, most], v, n) => [Math.min(least, v - half(n)), Math.max(most, v + half(n))], [Infinity, -Infinity]);
    const [left, right] = bounds(xs, n => this.nodes[n].w / 2), [top, bottom] = bounds(ys, () => 13);
    this.scale = Math.min(this.width / (right - left + 40), this.height / (bottom - top + 40), 1.2);
    const readable = 0.35;
    if (this.scale < readable) { /* begin at the first nodes, rather than show all too small */
      this.scale = readable;
      this.x = this.nodes[0].x - this.width / 2 / readable; this.y = top - 20;
    } else {
      this.x = (left + right) / 2 - this.width / 2 / this.scale; this.y = (top + bottom) / 2 - this.height / 2 / this.scale;
    }
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const factor = Math.exp(-event.deltaY * 0.002), scale = Math.min(Math.max(this.scale * factor, 0.02), 4);
      this.x += event.offsetX / this.scale - event.offsetX / scale;
      this.y += event.offsetY / this.scale - event.offsetY / scale;
      this.scale = scale; this.draw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = { x: event.offsetX, y: event.offsetY, left: this.x, top: this.y, moved: false };
    });
    canvas.addEventListener("pointermove", event => {
      const drag = this.drag;
      if (drag) {
        if (Math.abs(event.offsetX - drag.x) + Math.abs(event.offsetY - drag.y) > 3) drag.moved = true;
        this.x = drag.left - (event.offsetX - drag.x) / this.scale; this.y = drag.top - (event.offsetY - drag.y) / this.scale;
        this.draw();
      } else {
        const found = this.at(event.offsetX, event.offsetY);
        if (found !== this.near) { this.near = found; this.draw(); }
        this.describe(found, event);
      }
    });
    canvas.addEventListener("pointerup", event => {
      const moved = this.drag && this.drag.moved;
      this.drag = null;
      const found = !moved && this.at(event.offsetX, event.offsetY);
      if (found) this.choose(found);
    });
    canvas.addEventListener("pointerleave", event => this.describe(null, event));
  }

  at(x, y) {
    const gx = this.x + x / this.scale, gy = this.y + y / this.scale;
    return this.nodes.find(n => Math.abs(gx - n.x) <= n.w / 2 && Math.abs(gy - n.y) <= n.h / 2) || null;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const began = performance.now();
    const c = this.context, style = getComputedStyle(document.body);
    const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--soft"), panel = style.getPropertyValue("--panel"), accent = style.getPropertyValue("--accent");
    const s = this.scale * this.ratio;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    c.setTransform(s, 0, 0, s, -this.x * s, -this.y * s);
    const right = this.x + this.width / this.scale, bottom = this.y + this.height / this.scale;
    c.lineWidth = 1 / Math.max(this.scale, 0.3);
    for (const near of [false, true]) {
      c.strokeStyle = near ? accent : line; c.globalAlpha = near ? 1 : 0.45;
      c.beginPath();
      for (const [a, b] of this.edges) {
        if ((a === this.near || b === this.near) !== near) continue;
        if (Math.max(a.x, b.x) < this.x || Math.min(a.x, b.x) > right || Math.max(a.y, b.y) < this.y || Math.min(a.y, b.y) > bottom) continue;
        const middle = (a.y + b.y) / 2;
        c.moveTo(a.x, a.y + a.h / 2); c.bezierCurveTo(a.x, middle, b.x, middle, b.x, b.y - b.h / 2);
      }
      c.stroke();
    }
    c.globalAlpha = 1; c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle"; c.textAlign = "center";
    for (const n of this.nodes) {
      if (n.x + n.w / 2 < this.x || n.x - n.w / 2 > right || n.y + n.h < this.y || n.y - n.h > bottom) continue;
      c.fillStyle = n.color || panel; c.strokeStyle = n === this.near ? accent : line;
      c.beginPath();
      if (n.kind === "memory") c.roundRect(n.x - n.w / 2, n.y - n.h / 2, n.w, n.h, n.h / 2); else c.rect(n.x - n.w / 2, n.y - n.h / 2, n.w, n.h);
      c.fill(); c.stroke();
      if (this.scale > 0.25) { c.fillStyle = n.color ? "#fff" : ink; c.fillText(n.label, n.x, n.y, n.w - 8); }
    }
    this.paintTime = performance.now() - began;
  }
}
