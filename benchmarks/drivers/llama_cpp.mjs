// llama.cpp by the binaries that the npm package node-llama-cpp ships for every kind of x86 CPU.
// Speaks the protocol of protocol.py: node llama_cpp.mjs MODEL THREADS NODE_MODULES
import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [model, threads, modules] = process.argv.slice(2);
const entry = createRequire(`${modules}/`).resolve("node-llama-cpp");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry).href);

const llama = await getLlama({
    gpu: false, build: "never", maxThreads: Number(threads), logLevel: LlamaLogLevel.error
});
const loaded = await llama.loadModel({modelPath: model});
const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
tell({ready: true});

for await (const line of createInterface({input: process.stdin})) {
    const {prompts, output_len: outputLen} = JSON.parse(line);
    const longest = Math.max(...prompts.map((prompt) => prompt.length)) + outputLen + 1;
    // A context of exactly the size that is needed; made before the clock starts.
    const context = await loaded.createContext({
        sequences: prompts.length, contextSize: longest, batchSize: 512,
        threads: {ideal: Number(threads), min: Number(threads)}, flashAttention: true
    });
    const began = performance.now();
    const requests = await Promise.all(prompts.map(async (prompt) => {
        const times = [];
        const options = {temperature: 0, yieldEogToken: true};
        for await (const _ of context.getSequence().evaluate(prompt, options)) {
            times.push((performance.now() - began) / 1000);
            if (times.length === outputLen)
                break;
        }
        return {
            ttft_s: times[0], latency_s: times.at(-1),
            prompt_tokens: prompt.length, completion_tokens: times.length
        };
    }));
    tell({duration_s: (performance.now() - began) / 1000, requests});
    await context.dispose();
}
process.exit(0);
