// One scenario with OpenAI's client for Node: `node scenarios.mjs SCENARIO MODEL`. Prints what the client saw, in JSON.
import OpenAI from "openai";

const [scenario, model] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "hello" }];
const sampling = { temperature: 1, seed: 5, max_tokens: 24 };

const schema = {
  type: "object",
  properties: { on: { type: "boolean" }, colour: { type: "string", enum: ["red", "green"] } },
  required: ["on", "colour"],
  additionalProperties: false,
};
const constrained = { temperature: 2, seed: 5, max_tokens: 400 };
const tools = [{ type: "function", function: { name: "set_light", parameters: schema, strict: true } }];

// Far more work than is done before it is broken off.
const long = { n: 256, max_tokens: 480, ignore_eos: true };

const scenarios = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, ...sampling });
    return { model: answer.model, text: answer.choices[0].message.content, usage: answer.usage };
  },

  async stream() {
    const seen = { text: "", models: [], usages: [] };
    const stream = await client.chat.completions.create({
      model, messages, ...sampling, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      seen.text += chunk.choices[0]?.delta.content ?? "";
      if (!seen.models.includes(chunk.model)) seen.models.push(chunk.model);
      if (chunk.usage) seen.usages.push(chunk.usage);
    }
    return seen;
  },

  async tools() {
    const runner = client.chat.completions.stream({
      model, messages, tools, tool_choice: "required", parallel_tool_calls: false, ...constrained,
    });
    const answer = await runner.finalChatCompletion();
    return answer.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  },

  async structured() {
    const answer = await client.chat.completions.create({
      model, messages, ...constrained,
      response_format: { type: "json_schema", json_schema: { name: "light", schema, strict: true } },
    });
    return JSON.parse(answer.choices[0].message.content);
  },

  async responses() {
    const asked = { model, input: "hello", max_output_tokens: 24, temperature: 1, seed: 5 };
    const whole = await client.responses.create(asked);
    const seen = { whole: whole.output_text, streamed: "", usage: whole.usage, streamedUsage: null };
    for await (const event of await client.responses.create({ ...asked, stream: true })) {
      if (event.type === "response.output_text.delta") seen.streamed += event.delta;
      if (event.type === "response.completed") seen.streamedUsage = event.response.usage;
    }
    return seen;
  },

  async leave_stream() {
    const stream = await client.chat.completions.create({ model, messages, ...long, stream: true });
    let chunks = 0;
    for await (const _ of stream) {
      chunks += 1;
      if (chunks === 40) stream.controller.abort();
    }
    return { chunks };
  },

  async leave_whole() {
    const leaving = new AbortController();
    setTimeout(() => leaving.abort(), 500);
    try {
      await client.chat.completions.create({ model, messages, ...long }, { signal: leaving.signal });
      return { error: null };
    } catch (error) {
      return { error: error.constructor.name };
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
