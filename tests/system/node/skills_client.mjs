// Loads every skill of a server as the TypeScript SDK's second generation does, which verifies digests, sizes and
// frontmatter: `node skills_client.mjs MODE URL`. Prints what it loaded as JSON.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { SkillsClient } from "@modelcontextprotocol/client/ext/skills";

const [mode, url] = process.argv.slice(2);
const client = new Client({ name: "skills", version: "1" }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const skills = new SkillsClient(client);

const load = async (listed) => {
  const { skill } = await skills.get(listed.uri);
  const files = {};
  for (const { uri } of skill.resources) {
    const { text, verified } = await skills.read(skill, uri);
    files[uri] = { text, verified };
  }
  const { body } = await skills.read(skill);
  return { listed, described: skill, files, body };
};

const { supported, directoryRead } = skills;
const loaded = [];
for (const listed of (await skills.list()).skills) loaded.push(await load(listed));
const directories = {};
if (directoryRead) {
  for (const { listed } of loaded) {
    const root = listed.uri.slice(0, -"/SKILL.md".length);
    directories[root] = (await skills.readDirectory(root)).resources.map(({ uri, mimeType }) => ({ uri, mimeType }));
  }
}
const missing = await skills.get(`${loaded[0].listed.uri.replace("/SKILL.md", "-none/SKILL.md")}`).catch(({ code }) => code);
process.stdout.write(JSON.stringify({ supported, directoryRead, loaded, directories, missing }));
await client.close();
