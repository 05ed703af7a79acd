// Starts `tandem serve` for a test and stops it: TANDEM_BINARY and TANDEM_MODEL say which.
import { spawn } from "node:child_process";
import { once } from "node:events";
import readline from "node:readline";

export async function startServer(flags = []) {
  const binary = process.env.TANDEM_BINARY ?? "build/tandem";
  const model = process.env.TANDEM_MODEL ?? "models/nano";
  const child = spawn(binary, ["serve", model, "--port", "0", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  child.stderr.on("data", (chunk) => (log += chunk));
  const lines = readline.createInterface({ input: child.stdout });
  const address = await new Promise((resolve, reject) => {
    child.once("exit", (code) => reject(new Error(`tandem serve ended with ${code}:\n${log}`)));
    lines.on("line", (line) => {
      const found = line.match(/http:\/\/\S+/);
      if (found) resolve(found[0].replace(/\/$/, ""));
    });
  });
  const stop = async () => {
    const ended = once(child, "exit");
    child.kill("SIGTERM");
    const [code] = await ended;
    return { code, log };
  };
  return { address, stop, log: () => log };
}

// One gauge or counter of /metrics.
export async function metric(address, name) {
  const text = await (await fetch(`${address}/metrics`)).text();
  const line = text.split("\n").find((l) => l.startsWith(`${name}{`) || l.startsWith(`${name} `));
  if (!line) throw new Error(`/metrics has no ${name}:\n${text}`);
  return Number(line.slice(line.lastIndexOf(" ") + 1));
}

export async function until(condition, what, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`waited ${seconds} s for ${what}`);
}
