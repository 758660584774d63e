"use strict";
/* A graph on a canvas, as the server has laid it out: boxes with labels, curves between them. */

const FILLS = { load: "#2f8f83", store: "#a23b52", reduce: "#3b6fb6", range: "#b5651d" };

/* The scale below which labels are left out, and boxes and edges are simplified. */
const LEGIBLE = 0.25;

class Graph extends Drawing {
  constructor(box, { choose, describe }) {
    super(box, { choose, describe });
    this.nodes = []; this.edges = [];
    this.scale = 1; this.x = 0; this.y = 0;
    this.begin();
  }

  /* boxes: {label, text, kind, kernel, x, y}; edges: [from, to] by place, each with its bends. */
  /* If `outlined`, only memory is filled with the color of its kernel. */
  show({ boxes, edges, bends }, outlined = false) {
    this.context.font = "12px system-ui, sans-serif";
    for (const box of boxes) {
      /* no wider than the room that layout.py has left for it */
      box.w = Math.min(this.context.measureText(box.label).width, 7.2 * Math.min(box.label.length, 40)) + 20; box.h = 26;
      box.color = box.kernel ? color(box.kernel) : FILLS[box.kind];
      box.stroke = outlined && box.color;
      if (outlined && box.kind !== "memory") box.color = null;
    }
    this.nodes = boxes;
    this.edges = edges.map(([a, b], n) => {
      const from = boxes[a], to = boxes[b], xs = [from.x, to.x, ...bends[n].map(([x]) => x)];
      const way = [[from.x, from.y + 13], ...bends[n], [to.x, to.y - 13]];
      return { from, to, way, left: Math.min(...xs), right: Math.max(...xs), top: Math.min(from.y, to.y), bottom: Math.max(from.y, to.y) };
    });
    this.fit();
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
      for (const edge of this.edges) {
        if ((edge.from === this.near || edge.to === this.near) !== near) continue;
        if (edge.right < this.x || edge.left > right || edge.bottom < this.y || edge.top > bottom) continue;
        let [x, y] = edge.way[0];
        c.moveTo(x, y);
        if (this.scale < LEGIBLE) { c.lineTo(...edge.way[edge.way.length - 1]); continue; }
        for (const [nextX, nextY] of edge.way.slice(1)) {
          const middle = (y + nextY) / 2;
          c.bezierCurveTo(x, middle, nextX, middle, nextX, nextY);
          x = nextX; y = nextY;
        }
      }
      c.stroke();
    }
    c.globalAlpha = 1; c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle"; c.textAlign = "center";
    for (const n of this.nodes) {
      if (n.x + n.w / 2 < this.x || n.x - n.w / 2 > right || n.y + n.h < this.y || n.y - n.h > bottom) continue;
      if (this.scale < LEGIBLE) { c.fillStyle = n === this.near ? accent : n.color || n.stroke || line; c.fillRect(n.x - n.w / 2, n.y - n.h / 2, n.w, n.h); continue; }
      c.fillStyle = n.color || panel; c.strokeStyle = n === this.near ? accent : n.stroke || line;
      c.beginPath();
      if (n.kind === "memory") c.roundRect(n.x - n.w / 2, n.y - n.h / 2, n.w, n.h, n.h / 2); else c.rect(n.x - n.w / 2, n.y - n.h / 2, n.w, n.h);
      c.fill(); c.stroke();
      c.fillStyle = n.color ? "#fff" : ink; c.fillText(n.label, n.x, n.y, n.w - 8);
    }
    this.paintTime = performance.now() - began;
  }
}
