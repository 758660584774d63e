"use strict";
/* A timeline on a canvas: a row for each lane, zoomed by the wheel, moved by dragging. */

class Timeline extends Drawing {
  constructor(box, { end, load, color, describe, choose }) {
    super(box, { end, load, color, describe, choose });
    this.canvas.tabIndex = 0;
    this.from = 0; this.to = end;
    this.data = { lanes: [], labels: [] };
    this.rowHeight = 34; this.left = 150; this.top = 26;
    this.scroll = 0;
    this.asked = 0; this.got = 0;
    this.begin();
  }

  resize() {
    super.resize();
    this.ask();
  }

  show(from, to) {
    const least = 200;
    const length = Math.min(Math.max(to - from, least), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - length);
    this.to = this.from + length;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), 60);
  }

  /* Ask for what is shown, and half as much on both sides; once for each view. */
  ask() {
    const margin = (this.to - this.from) / 2;
    const wanted = [Math.floor(Math.max(this.from - margin, 0)), Math.ceil(this.to + margin), Math.max(this.width * 2, 100)];
    if (String(wanted) !== String(this.wanted)) { this.wanted = wanted; this.answer = this.fetched(++this.asked, wanted); }
    return this.answer;
  }

  async fetched(number, wanted) {
    const data = await this.load(...wanted);
    if (number > this.got) { this.got = number; this.data = data; this.draw(); }
  }

  x(time) { return this.left + (time - this.from) / (this.to - this.from) * (this.width - this.left); }
  time(x) { return this.from + (x - this.left) / (this.width - this.left) * (this.to - this.from); }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      if (event.shiftKey) { this.pan((event.deltaY || event.deltaX) / this.width); return; }
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.pan(event.deltaX / this.width); return; }
      const at = this.time(event.offsetX), factor = Math.exp(event.deltaY * 0.002);
      this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = { x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, scroll: this.scroll, moved: false };
    });
    canvas.addEventListener("pointermove", event => {
      const drag = this.drag;
      if (drag) {
        const delta = (event.offsetX - drag.x) / (this.width - this.left) * (drag.to - drag.from);
        if (Math.abs(event.offsetX - drag.x) + Math.abs(event.offsetY - drag.y) > 3) drag.moved = true;
        this.scroll = Math.max(0, Math.min(drag.scroll - (event.offsetY - drag.y), this.data.lanes.length * this.rowHeight - this.height + this.top));
        this.scroll = Math.max(this.scroll, 0);
        if (drag.moved) this.show(drag.from - delta, drag.to - delta);
      } else {
        const found = this.at(event.offsetX, event.offsetY);
        this.describe(found, event);
        canvas.style.cursor = found ? "pointer" : "default";
      }
    });
    canvas.addEventListener("pointerup", event => {
      const moved = this.drag && this.drag.moved;
      this.drag = null;
      if (!moved) { const found = this.at(event.offsetX, event.offsetY); if (found) this.choose(found); }
    });
    canvas.addEventListener("pointerleave", event => this.describe(null, event));
    canvas.addEventListener("dblclick", () => this.show(0, this.end));
    canvas.addEventListener("keydown", event => {
      const middle = (this.from + this.to) / 2, half = (this.to - this.from) / 2;
      const step = { w: 0.6, s: 1.7 }[event.key];
      if (step) this.show(middle - half * step, middle + half * step);
      if (event.key === "a" || event.key === "ArrowLeft") this.pan(-0.2);
      if (event.key === "d" || event.key === "ArrowRight") this.pan(0.2);
    });
  }

  pan(part) { const by = (this.to - this.from) * part; this.show(this.from + by, this.to + by); }

  at(x, y) {
    if (x < this.left || y < this.top) return null;
    const lane = this.data.lanes[Math.floor((y - this.top + this.scroll) / this.rowHeight)];
    if (!lane) return null;
    const slack = 3 / (this.width - this.left) * (this.to - this.from), time = this.time(x);
    let best = null;
    for (const span of lane.spans) {
      if (span[0] > time + slack) break;
      if (span[0] + span[1] >= time - slack) best = span;
      if (span[0] <= time && span[0] + span[1] >= time) best = span;
    }
    return best && { lane, span: best };
  }

  draw() {
    const c = this.context, style = getComputedStyle(document.body);
    const ink = style.getPropertyValue("--ink"), soft = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line"), panel = style.getPropertyValue("--panel");
    c.clearRect(0, 0, this.width, this.height);
    c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
    this.axis(c, soft, line);
    c.save();
    c.beginPath(); c.rect(0, this.top, this.width, this.height - this.top); c.clip();
    this.data.lanes.forEach((lane, row) => {
      const y = this.top + row * this.rowHeight - this.scroll;
      if (y > this.height || y + this.rowHeight < this.top) return;
      c.save();
      c.beginPath(); c.rect(this.left, y, this.width - this.left, this.rowHeight); c.clip();
      for (const span of lane.spans) {
        const x = this.x(span[0]), w = Math.max(this.x(span[0] + span[1]) - x, 1);
        if (x > this.width || x + w < this.left) continue;
        c.fillStyle = this.color(lane, span);
        c.fillRect(x, y + 4, w > 3 ? w - 0.5 : w, this.rowHeight - 8);
        if (w > 40) {
          c.save();
          c.beginPath(); c.rect(Math.max(x, this.left), y, w - 4, this.rowHeight); c.clip();
          c.fillStyle = "#fff";
          c.fillText(this.describe.label(lane, span), Math.max(x, this.left) + 4, y + this.rowHeight / 2);
          c.restore();
        }
      }
      c.restore();
      c.fillStyle = panel; c.fillRect(0, y, this.left, this.rowHeight);
      c.save(); c.beginPath(); c.rect(0, y, this.left - 6, this.rowHeight); c.clip();
      c.fillStyle = ink; c.fillText(lane.name, 12, y + this.rowHeight / 2); c.restore();
      c.strokeStyle = line; c.beginPath(); c.moveTo(0, y + this.rowHeight + 0.5); c.lineTo(this.width, y + this.rowHeight + 0.5); c.stroke();
    });
    c.restore();
  }

  axis(c, soft, line) {
    const length = this.to - this.from, most = Math.max((this.width - this.left) / 110, 1);
    const rough = length / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      c.strokeStyle = line; c.beginPath(); c.moveTo(x, 0); c.lineTo(x, this.height); c.stroke();
      c.fillStyle = soft; c.fillText(instant(time, step), x + 4, 13);
    }
  }
}

/* A time on an axis whose steps are so long. */
function instant(nanoseconds, step) {
  const [unit, size] = step >= 1e9 ? ["s", 1e9] : step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["us", 1e3] : ["ns", 1];
  return (nanoseconds / size).toLocaleString("en-US", { maximumFractionDigits: 0 }) + " " + unit;
}
