// Tools and requests that nano was trained for in kind: typed arguments, one and several calls.
const tool = (name, description, properties, required = Object.keys(properties)) => ({
  type: "function",
  function: { name, description, parameters: { type: "object", properties, required } },
});

export const weather = tool(
  "get_weather",
  "The weather of a town.",
  { city: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
  ["city"],
);
export const timer = tool("set_timer", "Starts a timer.", {
  minutes: { type: "integer" },
  label: { type: "string" },
});
export const currency = tool("convert_currency", "Converts an amount of money.", {
  amount: { type: "number" },
  from: { type: "string" },
  to: { type: "string" },
});
export const event = tool("create_event", "Creates a calendar event.", {
  title: { type: "string" },
  date: { type: "string" },
  guests: { type: "array", items: { type: "string" } },
});
export const message = tool("send_message", "Sends a message to a person.", {
  to: { type: "string" },
  text: { type: "string" },
});

export const tools = [weather, timer, currency, event, message];

export const requests = [
  "What is the weather in Oslo, in degrees Celsius?",
  "How warm is it in Lisbon? Use Fahrenheit.",
  "Weather in Bergen?",
  "Do I need a coat in Hamburg?",
  "Set a timer of 12 minutes for the soup.",
  "Start a 45 minute timer called bread.",
  "Convert 250 EUR to USD.",
  "How much is 19.5 GBP in JPY?",
  "What are 80 CHF worth in SEK?",
  "Plan a dinner on 2024-05-17 with Mira and Jonas.",
  'Send Mira the message "The bread is ready."',
  'Tell Jonas: "See you on Friday."',
];
