// The TypeScript SDK's first generation: @modelcontextprotocol/sdk.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { CAPABILITIES, play, serve } from "./script.mjs";

const open = ({ kind, command, url, env }) => {
  if (kind === "stdio") return new StdioClientTransport({ command: command[0], args: command.slice(1), env });
  if (kind === "sse") return new SSEClientTransport(new URL(url));
  return new StreamableHTTPClientTransport(new URL(url));
};

await serve(async (script, transcript) => {
  const { transport, answers } = script;
  const client = new Client({ name: "typescript1", version: "1" }, { capabilities: CAPABILITIES });
  for (const schema of [CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema]) {
    client.setRequestHandler(schema, (request) => {
      transcript.asked(request);
      return answers[request.method];
    });
  }
  client.fallbackNotificationHandler = async (notification) => transcript.heard(notification);
  await client.connect(open(transport));
  transcript.server = { capabilities: client.getServerCapabilities(), instructions: client.getInstructions() };
  await play(client, script, transcript, (params, options) => client.callTool(params, undefined, options));
  await client.close();
});
