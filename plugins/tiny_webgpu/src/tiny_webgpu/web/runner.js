// Runs a model that `tinycore export webgpu` wrote, on any WebGPU: in a page, or in Node.
//
//   const model = await load(name => fetch(name).then(r => r.arrayBuffer()));
//   const { output } = await model.run({ image: new Float32Array(64) });
//
// Inputs and outputs are typed arrays in row-major order; float16 and bfloat16 travel as their bits.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
};
const WORD = 4;
const ROW = 16; // of the uniform arguments: a vec4<u32>
const UNIFORM_ALIGNMENT = 256; // minUniformBufferOffsetAlignment of every device
const STORAGE_ALIGNMENT = 256; // minStorageBufferOffsetAlignment of every device

// The typed array for a dtype of tinycore. Throws for one that no typed array holds.
export function arrayOf(dtype) {
  const found = ARRAYS[dtype];
  if (!found) throw new TypeError(`there is no typed array for ${dtype}`);
  return found;
}

// The tensors of a safetensors file by name: { dtype, shape, bytes }.
export function parseSafetensors(content) {
  const head = Number(new DataView(content).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 8, head)));
  const found = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const [start, end] = entry.data_offsets;
    const bytes = new Uint8Array(content, 8 + head + start, end - start);
    found.set(name, { dtype: entry.dtype, shape: entry.shape, bytes });
  }
  return found;
}

// Loads a model. `read(name)` gives a file of the folder as an ArrayBuffer; `progress(done, count)` is
// called for each kernel that is compiled.
export async function load(read, gpu = globalThis.navigator?.gpu, progress = () => {}) {
  if (!gpu) throw new Error('this browser has no WebGPU');
  const text = async name => new TextDecoder().decode(await read(name));
  const manifest = JSON.parse(await text('model.json'));
  if (manifest.format !== 1) throw new Error(`model.json has format ${manifest.format}, not 1`);
  const device = await openDevice(gpu, manifest);
  const sources = await Promise.all(manifest.kernels.map(kernel => text(kernel.file)));
  const weights = parseSafetensors(await read('weights.safetensors'));
  const model = new Model(device, manifest);
  await checked(device, () => model.build(sources, weights, progress));
  return model;
}

// A device with the features and limits that the kernels need.
async function openDevice(gpu, manifest) {
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new Error('WebGPU finds no adapter');
  const most = list => Math.max(0, ...list);
  const kernels = manifest.kernels;
  const wanted = {
    maxStorageBuffersPerShaderStage: most(kernels.map(k => k.bindings.length)),
    maxComputeInvocationsPerWorkgroup: most(kernels.map(k => k.threads.reduce((a, b) => a * b))),
    maxComputeWorkgroupSizeX: most(kernels.map(k => k.threads[0])),
    maxComputeWorkgroupSizeY: most(kernels.map(k => k.threads[1])),
    maxComputeWorkgroupStorageSize: most(kernels.map(k => k.shared)),
    maxStorageBufferBindingSize: most(manifest.buffers),
    maxBufferSize: most(manifest.buffers),
  };
  const usual = { // what every device has need not be asked for
    maxStorageBuffersPerShaderStage: 8, maxComputeInvocationsPerWorkgroup: 256,
    maxComputeWorkgroupSizeX: 256, maxComputeWorkgroupSizeY: 256,
    maxComputeWorkgroupStorageSize: 16384, maxStorageBufferBindingSize: 134217728,
    maxBufferSize: 268435456,
  };
  const requiredLimits = {};
  for (const [name, value] of Object.entries(wanted)) {
    if (value <= usual[name]) continue;
    if (value > adapter.limits[name]) {
      throw new Error(`the model needs ${name} = ${value}, this device has ${adapter.limits[name]}`);
    }
    requiredLimits[name] = value;
  }
  const requiredFeatures = [...new Set(kernels.flatMap(kernel => kernel.features))];
  for (const feature of requiredFeatures) {
    if (!adapter.features.has(feature)) throw new Error(`the model needs the feature ${feature}`);
  }
  return adapter.requestDevice({ requiredFeatures, requiredLimits });
}

// Does something on a device; what WebGPU objects to is thrown.
async function checked(device, action) {
  device.pushErrorScope('validation');
  device.pushErrorScope('out-of-memory');
  let result;
  try {
    result = await action();
  } finally {
    const errors = [await device.popErrorScope(), await device.popErrorScope()];
    const error = errors.find(Boolean);
    if (error) throw new Error(error.message);
  }
  return result;
}

const up = (size, to) => Math.ceil(size / to) * to;

export class Model {
  constructor(device, manifest) {
    this.device = device;
    this.manifest = manifest;
    this.inputs = manifest.inputs;
    this.outputs = manifest.outputs;
    this.busy = Promise.resolve();
  }

  // Puts the weights into memory and makes a pipeline of each kernel, a bind group of each launch.
  async build(sources, weights, progress) {
    const { device, manifest } = this;
    const { STORAGE, COPY_SRC, COPY_DST, UNIFORM } = GPUBufferUsage;
    const usage = STORAGE | COPY_SRC | COPY_DST;
    this.buffers = manifest.buffers.map(size => device.createBuffer({ size, usage }));
    for (const { name, span } of manifest.weights) this.write(span, weights.get(name).bytes);
    let done = 0;
    this.pipelines = await Promise.all(manifest.kernels.map(async (kernel, i) => {
      const pipeline = await this.pipeline(kernel, sources[i]);
      progress(++done, manifest.kernels.length);
      return pipeline;
    }));
    this.steps = manifest.launches.map(launch => this.step(launch));
    const size = Math.max(this.steps.length, 1) * this.stride;
    this.uniform = device.createBuffer({ size, usage: UNIFORM | COPY_DST });
    this.steps.forEach((step, i) => {
      device.queue.writeBuffer(this.uniform, i * this.stride, step.words);
      step.group = this.group(step, i * this.stride);
    });
  }

  // Room for the arguments of any launch.
  get stride() {
    const slots = Math.max(0, ...this.manifest.kernels.map(kernel => kernel.bindings.length));
    return up((slots + 1) * WORD, UNIFORM_ALIGNMENT);
  }

  // A promise: kernels are compiled side by side, and the page stays responsive.
  pipeline(kernel, code) {
    const { device, manifest } = this;
    const visibility = GPUShaderStage.COMPUTE;
    const entries = kernel.bindings.map(([binding, type]) => ({ binding, visibility, buffer: { type } }));
    entries.push({ binding: manifest.arguments, visibility, buffer: { type: 'uniform' } });
    const layout = device.createPipelineLayout({
      bindGroupLayouts: [device.createBindGroupLayout({ entries })],
    });
    const module = device.createShaderModule({ code, label: kernel.name });
    return device.createComputePipelineAsync({ layout, compute: { module, entryPoint: manifest.entry } });
  }

  // What is bound for a launch: each buffer from an aligned byte on, and how far inside it starts.
  step({ kernel, spans }) {
    const { bindings, grid } = this.manifest.kernels[kernel];
    const words = new Uint32Array(up((bindings.length + 1) * WORD, ROW) / WORD);
    const bound = bindings.map(([binding], i) => {
      const [number, start, size] = spans[binding];
      words[i] = start % STORAGE_ALIGNMENT;
      const offset = start - words[i];
      return { binding, resource: { buffer: this.buffers[number], offset, size: up(size + words[i], WORD) } };
    });
    return { kernel, grid, words, bound };
  }

  group({ kernel, bound, words }, offset) {
    const resource = { buffer: this.uniform, offset, size: words.byteLength };
    return this.device.createBindGroup({
      layout: this.pipelines[kernel].getBindGroupLayout(0),
      entries: [...bound, { binding: this.manifest.arguments, resource }],
    });
  }

  // Copies bytes to a span, which starts at a whole word; the last word is filled up with zeros.
  write([buffer, start], bytes) {
    let whole = bytes;
    if (bytes.byteLength % WORD || bytes.byteOffset % WORD) {
      whole = new Uint8Array(up(bytes.byteLength, WORD));
      whole.set(bytes);
    }
    this.device.queue.writeBuffer(this.buffers[buffer], start, whole);
  }

  // Computes the outputs by name from the inputs by name. Calls wait for each other.
  run(inputs) {
    const result = this.busy.then(() => checked(this.device, () => this.compute(inputs)));
    this.busy = result.catch(() => {});
    return result;
  }

  async compute(inputs) {
    const { device } = this;
    for (const { name, dtype, shape, span } of this.inputs) {
      const values = inputs[name];
      const count = shape.reduce((a, b) => a * b, 1);
      if (!(values instanceof arrayOf(dtype)) || values.length !== count) {
        throw new TypeError(`${name} must be a ${arrayOf(dtype).name} of ${count} elements`);
      }
      this.write(span, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    }
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { kernel, grid, group } of this.steps) {
      pass.setPipeline(this.pipelines[kernel]);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...grid);
    }
    pass.end();
    const read = this.outputs.map(({ span: [buffer, start, bytes] }) => {
      const size = up(bytes, WORD);
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      const staging = device.createBuffer({ size, usage });
      encoder.copyBufferToBuffer(this.buffers[buffer], start, staging, 0, size);
      return staging;
    });
    device.queue.submit([encoder.finish()]);
    const found = {};
    for (const [i, { name, dtype, span }] of this.outputs.entries()) {
      await read[i].mapAsync(GPUMapMode.READ);
      const copied = read[i].getMappedRange().slice(0, span[2]);
      read[i].destroy();
      found[name] = new (arrayOf(dtype))(copied);
    }
    return found;
  }
}
