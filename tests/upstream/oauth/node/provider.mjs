// A real authorization server (oidc-provider) and an MCP server that wants its tokens, on one port of loopback.
//
// node provider.mjs PORT: prints its origin once it listens. Tokens live 10 s (TOKEN_SECONDS), refresh tokens are
// redeemed once. Whoever opens a login is logged in as ?login_hint, or as `someone`, and agrees to everything.
// The tool `write` needs the scope of that name, and no token is enough for `never`, which wants it too. The scope
// `admin` is one of the resource's that the authorization server itself does not list. GET /figures counts what it was
// asked. Client metadata documents of https://gateway.test are fetched from GATEWAY.

import { Provider } from 'oidc-provider';

const port = Number(process.argv[2]);
const origin = `http://127.0.0.1:${port}`;
const seconds = Number(process.env.TOKEN_SECONDS ?? 10);
const resource = `${origin}/mcp`;
const figures = { grants: {}, errors: {}, calls: 0, registered: 0, refused: 0, replayed: 0, revoked: 0, sessions: 0, discovers: 0 };
const count = (group, key) => { group[key] = (group[key] ?? 0) + 1; };

const provider = new Provider(origin, {
  scopes: ['openid', 'offline_access', 'read', 'write'],
  ttl: { AccessToken: seconds, RefreshToken: 86400, DeviceCode: 600, Grant: 86400, Session: 86400, Interaction: 600 },
  clientDefaults: { grant_types: ['authorization_code', 'refresh_token'] },
  rotateRefreshToken: true,
  issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  fetch: (url, options) => {
    const asked = new URL(url);
    if (asked.hostname !== 'gateway.test') throw new Error(`${asked} is fetched by no test`);
    delete options.dispatcher; // which refuses loopback, as it should
    return fetch(process.env.GATEWAY + asked.pathname, options);
  },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    revocation: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
    deviceFlow: {
      enabled: true,
      userCodeInputSource: (ctx, form) => { ctx.body = form; },
      userCodeConfirmSource: (ctx, form) => { ctx.body = form; },
      successSource: (ctx) => { ctx.body = 'done'; },
    },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, indicator) => {
        if (indicator !== resource) throw new Error(`a token for ${indicator} was asked for`);
        return { scope: 'read write admin', audience: resource, accessTokenTTL: seconds, accessTokenFormat: 'opaque' };
      },
    },
  },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
});

provider.on('grant.success', (ctx) => count(figures.grants, ctx.oidc.params.grant_type));
provider.on('grant.error', (ctx, error) => {
  count(figures.errors, `${ctx.oidc.params?.grant_type} ${error.error}`);
  if (ctx.oidc.entities?.RefreshToken?.consumed) figures.replayed += 1;
});
provider.on('registration_create.success', () => { figures.registered += 1; });
provider.on('grant.revoked', () => { figures.revoked += 1; });
provider.on('server_error', (ctx, error) => console.error(error));

provider.use(async (ctx, next) => {
  if (ctx.path.startsWith('/interaction/')) return agree(ctx);
  if (ctx.path === '/figures') { ctx.body = figures; return undefined; }
  if (ctx.path === '/.well-known/oauth-protected-resource/mcp') {
    ctx.body = { resource, authorization_servers: [origin], scopes_supported: ['read'] };
    return undefined;
  }
  if (ctx.path === '/mcp') return serve(ctx);
  return next();
});

// One step of a login: the person says who they are, or agrees.
async function agree(ctx) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(ctx.req, ctx.res);
  if (prompt.name === 'login') {
    return provider.interactionFinished(ctx.req, ctx.res, { login: { accountId: params.login_hint ?? 'someone' } });
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope = [], missingResourceScopes = {} } = prompt.details;
  if (missingOIDCScope.length) grant.addOIDCScope(missingOIDCScope.join(' '));
  for (const [indicator, scopes] of Object.entries(missingResourceScopes)) {
    grant.addResourceScope(indicator, scopes.join(' '));
  }
  return provider.interactionFinished(ctx.req, ctx.res, { consent: { grantId: await grant.save() } });
}

// An MCP server of 2026-07-28 with one tool, which tells who calls it.
async function serve(ctx) {
  const bearer = /^Bearer (.+)$/.exec(ctx.get('authorization'))?.[1];
  const token = bearer && (await provider.AccessToken.find(bearer));
  if (!token?.isValid || token.aud !== resource) {
    figures.refused += 1;
    ctx.status = 401;
    ctx.set('WWW-Authenticate', `Bearer resource_metadata="${origin}/.well-known/oauth-protected-resource/mcp"`);
    return;
  }
  const chunks = [];
  for await (const chunk of ctx.req) chunks.push(chunk);
  const { id, method, params } = JSON.parse(Buffer.concat(chunks));
  const wants = method === 'tools/call' && params.name !== 'whoami';
  if (wants && (params.name === 'never' || !token.scope.split(' ').includes('write'))) {
    ctx.status = 403;
    ctx.set('WWW-Authenticate', 'Bearer error="insufficient_scope", scope="write"');
    return;
  }
  const result = { resultType: 'complete', ...results[method]?.(token) };
  if (id === undefined) { ctx.status = 202; return; }
  ctx.body = results[method]
    ? { jsonrpc: '2.0', id, result }
    : { jsonrpc: '2.0', id, error: { code: -32601, message: 'Method not found' } };
}

const results = {
  'server/discover': () => {
    figures.discovers += 1;
    return {
      supportedVersions: ['2026-07-28'], capabilities: { tools: {} }, serverInfo: { name: 'guarded', version: '1' },
      ttlMs: 600000, cacheScope: 'private',
    };
  },
  'tools/list': () => ({
    tools: ['whoami', 'write', 'never'].map((name) => ({ name, inputSchema: { type: 'object' } })), ttlMs: 600000, cacheScope: 'private',
  }),
  'tools/call': (token) => {
    figures.calls += 1;
    return { content: [{ type: 'text', text: token.accountId }] };
  },
};

provider.listen(port, '127.0.0.1', () => console.log(origin));
