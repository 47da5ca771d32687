// The TypeScript SDK's second generation as a server of the skills in a folder, over stdio and in one era:
// `node skills_server.mjs ERA FOLDER`.

import { McpServer } from "@modelcontextprotocol/server";
import { loadSkills } from "@modelcontextprotocol/server/ext/skills/node";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";

const [era, folder] = process.argv.slice(2);
const skills = await loadSkills(folder, { strict: true, prefix: "acme" });

const create = () => {
  const server = new McpServer({ name: "skills", version: "1" });
  skills.attach(server);
  return server;
};

if (era === "legacy") {
  await create().connect(new StdioServerTransport());
} else {
  serveStdio(create, { legacy: "reject" });
}
