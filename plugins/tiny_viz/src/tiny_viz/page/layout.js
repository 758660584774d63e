"use strict";
/* Layout of a directed graph by d3-dag, in a worker: layers for small graphs, lanes for larger ones. */
importScripts("vendor/d3-dag.iife.min.js");

const LAYERED = 160;
const LANES = 2500;
const GAP = 16;

onmessage = ({ data: { nodes, edges } }) => {
  const parents = new Map(nodes.map(node => [node.id, new Set()]));
  for (const [from, to] of edges) if (from !== to && parents.has(from) && parents.has(to)) parents.get(to).add(from);
  let places, kind;
  if (nodes.length <= LANES) [places, kind] = byLibrary(nodes, parents);
  else [places, kind] = [inOrder(nodes), "order"];
  postMessage({ places, kind });
};

function byLibrary(nodes, parents) {
  const sizes = new Map(nodes.map(node => [node.id, node]));
  const graph = d3.graphStratify()(nodes.map(node => ({ id: node.id, parentIds: [...parents.get(node.id)] })));
  const widest = Math.max(...nodes.map(node => node.w));
  const kind = nodes.length <= LAYERED ? "layers" : "lanes";
  const size = ({ data }) => { const node = sizes.get(data.id); return [node.w, node.h]; };
  const layout = kind === "layers"
    ? d3.sugiyama().layering(d3.layeringLongestPath()).decross(d3.decrossTwoLayer().passes(4)).coord(d3.coordGreedy()).nodeSize(size).gap([GAP, 44])
    : d3.grid().nodeSize([widest, 26]).gap([GAP, 10]);
  layout(graph);
  const found = new Map();
  for (const node of graph.nodes()) found.set(node.data.id, [node.x, node.y]);
  return [nodes.map(node => found.get(node.id)), kind];
}

/* Thousands of nodes: in the order of time, in columns. */
function inOrder(nodes) {
  const rows = Math.ceil(Math.sqrt(nodes.length * 4)), width = Math.max(...nodes.map(node => node.w)) + 40;
  return nodes.map((node, n) => [Math.floor(n / rows) * width, (n % rows) * 40]);
}
