// The OpenAI client library against `tandem serve` with the bundled nano: what a user's program does.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import OpenAI from "openai";
import { metric, startServer, until } from "./server.mjs";
import { requests, tools, weather } from "./tools.mjs";

let server;
let client;
const model = "nano";

before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "unused", maxRetries: 0 });
});
after(async () => {
  const { code, log } = await server.stop();
  assert.equal(code, 0, log);
});

const ask = (content, more = {}) => ({ model, temperature: 0, messages: [{ role: "user", content }], ...more });

// What a stream adds up to, with every rule a client library relies on checked on the way.
async function collect(stream) {
  const sum = { role: undefined, content: "", reasoning: "", calls: [], finish: undefined, usage: undefined };
  for await (const chunk of stream) {
    if (chunk.usage && chunk.choices.length === 0) sum.usage = chunk.usage;
    for (const choice of chunk.choices) {
      const delta = choice.delta;
      sum.role ??= delta.role;
      sum.content += delta.content ?? "";
      sum.reasoning += delta.reasoning_content ?? "";
      for (const piece of delta.tool_calls ?? []) {
        assert.ok(piece.index === sum.calls.length || piece.index === sum.calls.length - 1, "call indices never go back");
        if (piece.index === sum.calls.length) {
          assert.ok(piece.id && piece.function.name, "the first piece of a call names it");
          sum.calls.push({ id: piece.id, name: piece.function.name, arguments: "" });
        }
        sum.calls[piece.index].arguments += piece.function.arguments ?? "";
      }
      if (choice.finish_reason) {
        assert.equal(sum.finish, undefined, "one finish");
        sum.finish = choice.finish_reason;
      }
    }
  }
  assert.equal(sum.role, "assistant");
  return sum;
}

describe("models", () => {
  test("are listed by their folder's name", async () => {
    const list = await client.models.list();
    assert.deepEqual(list.data.map((m) => m.id), [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  });
});

describe("chat", () => {
  test("answers, thinking apart", async () => {
    const reply = await client.chat.completions.create(ask("What is 17 plus 25?"));
    const choice = reply.choices[0];
    assert.match(choice.message.content, /42/);
    assert.ok(choice.message.reasoning_content.length > 0);
    assert.equal(choice.finish_reason, "stop");
    assert.equal(reply.object, "chat.completion");
    const usage = reply.usage;
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
    assert.ok(usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens);
  });

  test("streams what it would have answered at once", async () => {
    const whole = await client.chat.completions.create(ask("What is 23 plus 48?"));
    const streamed = await collect(
      await client.chat.completions.create(
        ask("What is 23 plus 48?", { stream: true, stream_options: { include_usage: true } }),
      ),
    );
    assert.equal(streamed.content, whole.choices[0].message.content);
    assert.equal(streamed.reasoning, whole.choices[0].message.reasoning_content);
    assert.equal(streamed.finish, whole.choices[0].finish_reason);
    assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
  });

  test("thinks less with a low effort and not at all without thinking", async () => {
    const low = await client.chat.completions.create(ask("What is 17 plus 25?", { reasoning_effort: "low" }));
    const max = await client.chat.completions.create(ask("What is 17 plus 25?", { reasoning_effort: "xhigh" }));
    const none = await client.chat.completions.create(ask("What is 17 plus 25?", { reasoning_effort: "none" }));
    const tokens = (reply) => reply.usage.completion_tokens_details.reasoning_tokens;
    assert.ok(tokens(low) <= tokens(max));
    assert.equal(tokens(none), 0);
    assert.match(none.choices[0].message.content, /42/);
  });

  test("stops at the limit and at a stop string", async () => {
    const cut = await client.chat.completions.create(ask("What is 17 plus 25?", { max_completion_tokens: 3 }));
    assert.equal(cut.choices[0].finish_reason, "length");
    assert.equal(cut.usage.completion_tokens, 3);
    const stopped = await client.chat.completions.create(ask("What is 17 plus 25?", { stop: ["42"] }));
    assert.equal(stopped.choices[0].finish_reason, "stop");
    assert.ok(!stopped.choices[0].message.content.includes("42"));
  });

  test("gives log-probabilities and several choices", async () => {
    const reply = await client.chat.completions.create(
      ask("Who are you?", { n: 2, logprobs: true, top_logprobs: 3, temperature: 0.8, seed: 7 }),
    );
    assert.deepEqual(reply.choices.map((c) => c.index), [0, 1]);
    for (const choice of reply.choices) {
      const text = choice.logprobs.content.map((entry) => entry.token).join("");
      assert.equal(text, choice.message.content);
      for (const entry of choice.logprobs.content) {
        assert.ok(entry.logprob <= 0);
        assert.equal(entry.top_logprobs.length, 3);
      }
    }
    const again = await client.chat.completions.create(ask("Who are you?", { n: 2, temperature: 0.8, seed: 7 }));
    assert.deepEqual(
      again.choices.map((c) => c.message.content),
      reply.choices.map((c) => c.message.content),
    );
  });
});

describe("a conversation", () => {
  const history = "The harbour is long and the view over the water is worth the walk. ".repeat(24);

  test("pays for its new tokens only, and can say so", async () => {
    const messages = [{ role: "user", content: `Mira's locker code is 4821. ${history}\n\nWhat is Mira's locker code?` }];
    const first = await client.chat.completions.create({ model, messages, temperature: 0 });
    assert.match(first.choices[0].message.content, /4821/);
    messages.push(first.choices[0].message, { role: "user", content: "What is 30 plus 12?" });
    const second = await client.chat.completions.create({ model, messages, temperature: 0 });
    assert.match(second.choices[0].message.content, /42/);
    const cached = second.usage.prompt_tokens_details.cached_tokens;
    assert.ok(cached >= first.usage.prompt_tokens - 128, `cached ${cached} of ${first.usage.prompt_tokens}`);

    const explained = await (await fetch(`${server.address}/v1/cache/explain/${second.id}`)).json();
    assert.equal(explained.hit_tokens, cached, JSON.stringify(explained));

    // The same second turn by a client that drops the reasoning: the lint names what is missing.
    const stripped = [messages[0], { role: "assistant", content: messages[1].content }, messages[2]];
    const lint = await (
      await fetch(`${server.address}/v1/cache/lint`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ model, messages: stripped }),
      })
    ).json();
    assert.match(JSON.stringify(lint), /reasoning/);
  });

  test("gives the same answer warm as cold", async () => {
    const messages = [{ role: "user", content: `Jonas's home town is Bergen. ${history}\n\nWhat is Jonas's home town?` }];
    const cold = await client.chat.completions.create({ model, messages, temperature: 0 });
    const warm = await client.chat.completions.create({ model, messages, temperature: 0 });
    assert.ok(warm.usage.prompt_tokens_details.cached_tokens > 0);
    assert.equal(warm.choices[0].message.content, cold.choices[0].message.content);
    assert.equal(warm.choices[0].message.reasoning_content, cold.choices[0].message.reasoning_content);
  });
});

describe("tools", () => {
  test("make a round trip", async () => {
    const messages = [{ role: "user", content: "What is the weather in Oslo, in degrees Celsius?" }];
    const first = await client.chat.completions.create({ model, messages, tools: [weather], temperature: 0 });
    const message = first.choices[0].message;
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    assert.equal(message.tool_calls[0].function.name, "get_weather");
    assert.equal(JSON.parse(message.tool_calls[0].function.arguments).city, "Oslo");
    messages.push(message, {
      role: "tool",
      tool_call_id: message.tool_calls[0].id,
      content: '{"temperature": -4, "unit": "celsius", "sky": "snowy"}',
    });
    const second = await client.chat.completions.create({ model, messages, tools: [weather], temperature: 0 });
    assert.equal(second.choices[0].finish_reason, "stop");
    assert.match(second.choices[0].message.content, /-4/);
  });

  test("are called with arguments that parse, streamed or not, whatever is asked", async () => {
    let calls = 0;
    const seen = new Set();
    for (const content of requests) {
      const whole = await client.chat.completions.create(ask(content, { tools }));
      const streamed = await collect(await client.chat.completions.create(ask(content, { tools, stream: true })));
      const message = whole.choices[0].message;
      assert.equal(streamed.calls.length, message.tool_calls?.length ?? 0, content);
      for (const [i, call] of (message.tool_calls ?? []).entries()) {
        const declared = tools.find((t) => t.function.name === call.function.name);
        assert.ok(declared, `${content}: ${call.function.name} was not declared`);
        const parsed = JSON.parse(call.function.arguments);
        for (const key of Object.keys(parsed)) assert.ok(key in declared.function.parameters.properties, content);
        assert.equal(streamed.calls[i].arguments, call.function.arguments, content);
        for (const id of [call.id, streamed.calls[i].id]) {
          assert.ok(!seen.has(id), "ids are unique across turns");
          seen.add(id);
        }
        calls += 1;
      }
      if (message.tool_calls) {
        // It goes back as history: the same calls render and parse again.
        const results = message.tool_calls.map((c) => ({ role: "tool", tool_call_id: c.id, content: "ok" }));
        const next = await client.chat.completions.create({
          model,
          temperature: 0,
          tools,
          max_completion_tokens: 8,
          messages: [{ role: "user", content }, message, ...results],
        });
        assert.ok(next.choices[0]);
      }
    }
    assert.ok(calls >= requests.length - 2, `${calls} calls for ${requests.length} requests`);
  });
});

describe("a client that goes away", () => {
  test("leaves nothing running", async () => {
    const stream = await client.chat.completions.create(
      ask("What is 17 plus 25?", { stream: true, max_completion_tokens: 4000, ignore_eos: true }),
    );
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      break; // aborts the connection
    }
    stream.controller.abort();
    await until(async () => (await metric(server.address, "vllm:num_requests_running")) === 0, "the request to end");
  });
});

describe("errors", () => {
  test("are the client library's own kinds", async () => {
    await assert.rejects(client.chat.completions.create({ ...ask("Hi"), model: "other" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create(ask("Hi", { temperature: 9 })), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "temperature");
      return true;
    });
    const image = [{ type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }];
    await assert.rejects(client.chat.completions.create(ask(image)), OpenAI.BadRequestError);
  });

  test("name a wrong key", async () => {
    const guarded = await startServer(["--api-key", "secret-1", "--api-key", "secret-2"]);
    try {
      const options = { baseURL: `${guarded.address}/v1`, maxRetries: 0 };
      await assert.rejects(new OpenAI({ ...options, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
      assert.equal((await new OpenAI({ ...options, apiKey: "secret-2" }).models.list()).data[0].id, model);
      assert.equal((await fetch(`${guarded.address}/health`)).status, 200);
    } finally {
      await guarded.stop();
    }
  });
});

describe("completions and tokens", () => {
  test("complete a text", async () => {
    const reply = await client.completions.create({ model, prompt: "In the beginning God created", max_tokens: 8, temperature: 0 });
    assert.equal(reply.object, "text_completion");
    assert.ok(reply.choices[0].text.length > 0);
    const streamed = await client.completions.create({ model, prompt: "In the beginning God created", max_tokens: 8, temperature: 0, stream: true });
    let text = "";
    for await (const chunk of streamed) text += chunk.choices[0]?.text ?? "";
    assert.equal(text, reply.choices[0].text);
  });

  test("count as the server counts", async () => {
    const post = async (path, body) =>
      (await fetch(`${server.address}${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();
    const tokenized = await post("/tokenize", { model, prompt: "What is 17 plus 25?" });
    assert.equal(tokenized.count, tokenized.tokens.length);
    assert.equal((await post("/detokenize", { model, tokens: tokenized.tokens })).prompt, "What is 17 plus 25?");
  });
});
