"use strict";
/* A canvas that fills a box at the resolution of the screen, and is drawn again when that changes. */

class Drawing {
  constructor(box, options) {
    Object.assign(this, { box, ...options });
    this.canvas = box.appendChild(document.createElement("canvas"));
  }

  begin() {
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.resize();
  }

  resize() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.box.clientWidth; this.height = this.box.clientHeight;
    this.canvas.width = this.width * this.ratio; this.canvas.height = this.height * this.ratio;
    this.canvas.style.width = this.width + "px"; this.canvas.style.height = this.height + "px";
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.draw();
  }
}
