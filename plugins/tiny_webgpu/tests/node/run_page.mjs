// Runs an exported model on Dawn's Node bindings and prints its outputs as JSON.
// node run_page.mjs PACKAGE_FOLDER PAGE_FOLDER
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [tools, page] = process.argv.slice(2);
const { create, globals } = await import(pathToFileURL(join(tools, 'webgpu', 'index.js')));
Object.assign(globalThis, globals);
const script = join(page, 'runner.mjs'); // Node tells modules by their names
await copyFile(join(page, 'runner.js'), script);
const { load, arrayOf, parseSafetensors } = await import(pathToFileURL(script));

const read = async name => {
  const bytes = await readFile(join(page, name));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
};
globalThis.gpu = create([]); // the bindings do not keep it alive themselves
const model = await load(read, globalThis.gpu);
const example = parseSafetensors(await read('example.safetensors'));
const inputs = {};
for (const { name, dtype } of model.inputs) {
  inputs[name] = new (arrayOf(dtype))(example.get(`input/${name}`).bytes.slice().buffer);
}
const [first, second] = await Promise.all([model.run(inputs), model.run(inputs)]);
const told = {};
for (const { name } of model.outputs) told[name] = [...first[name]].map(Number);
const again = model.outputs.every(({ name }) => first[name].join() === second[name].join());
const wrong = await model.run({}).then(() => 'nothing', error => error.message);
console.log(JSON.stringify({ outputs: told, again, wrong }));
process.exit(0);
