"use strict";
// All text is set by textContent: what a model writes is never read as HTML.
const at = (id) => document.getElementById(id);
let messages = [];
let running = null;

function show(role, text) {
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  at("talk").append(element);
  element.scrollIntoView({ block: "end" });
  return element;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
  }
}

async function answer() {
  running = new AbortController();
  at("send").textContent = "Stop";
  const element = show("assistant", "…");
  let text = "";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ messages, stream: true, temperature: 0.8, top_k: 40, min_p: 0.05 }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const began = performance.now();
    let count = 0;
    for await (const data of events(response)) {
      if (data.error) throw new Error(data.error.message);
      const more = data.choices[0]?.delta?.content ?? "";
      if (!more) continue;
      text += more;
      element.textContent = text;
      element.scrollIntoView({ block: "end" });
      const seconds = (performance.now() - began) / 1000;
      if (++count > 1) at("speed").textContent = `${(count / seconds).toFixed(1)} tokens/s`;
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  element.textContent = text;
  messages.push({ role: "assistant", content: text });
  running = null;
  at("send").textContent = "Send";
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = at("text").value.trim();
  if (!text) return;
  at("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  answer();
});
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
at("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  at("talk").replaceChildren();
});
fetch("v1/models").then((r) => r.json()).then((r) => { at("model").textContent = r.data[0].id; });
