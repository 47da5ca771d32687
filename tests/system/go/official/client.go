package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcproxy.test/system/script"
)

func transport(t script.Transport) mcp.Transport {
	switch t.Kind {
	case "stdio":
		command := exec.Command(t.Command[0], t.Command[1:]...)
		command.Env, command.Stderr = t.Environment(), os.Stderr
		return &mcp.CommandTransport{Command: command}
	case "sse":
		return &mcp.SSEClientTransport{Endpoint: t.URL}
	default:
		return &mcp.StreamableClientTransport{Endpoint: t.URL, MaxEventSize: -1}
	}
}

func client(played script.Script, transcript *script.Transcript) *mcp.Client {
	var roots mcp.ListRootsResult
	options := &mcp.ClientOptions{
		CreateMessageHandler: func(_ context.Context, request *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			answer := &mcp.CreateMessageResult{}
			transcript.Asked("sampling/createMessage", request.Params, answer)
			return answer, nil
		},
		ElicitationHandler: func(_ context.Context, request *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			answer := &mcp.ElicitResult{}
			transcript.Asked("elicitation/create", request.Params, answer)
			return answer, nil
		},
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{ListChanged: true},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		// What the client has a handler for it listens to, in the stateless era.
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {},
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, options)
	if err := json.Unmarshal(played.Answers["roots/list"], &roots); err == nil {
		client.AddRoots(roots.Roots...)
	}
	client.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			if strings.HasPrefix(method, "notifications/") {
				transcript.Heard(method, request.GetParams())
			}
			return next(ctx, method, request)
		}
	})
	return client
}

func verbs(session *mcp.ClientSession, modern bool) map[string]script.Verb {
	return map[string]script.Verb{
		"tools/call": func(ctx context.Context, raw json.RawMessage, token any) (any, error) {
			params := &mcp.CallToolParams{}
			if err := json.Unmarshal(raw, params); err != nil {
				return nil, err
			}
			params.Meta = mcp.Meta{}
			if modern {
				params.Meta[mcp.MetaKeyLogLevel] = "info"
			}
			if token != nil {
				params.SetProgressToken(token)
			}
			return session.CallTool(ctx, params)
		},
		"resources/read":        script.As(session.ReadResource),
		"prompts/get":           script.As(session.GetPrompt),
		"completion/complete":   script.As(session.Complete),
		"logging/setLevel":      script.As(answered(session.SetLoggingLevel)),
		"ping":                  script.As(answered(session.Ping)),
		"resources/subscribe":   script.As(answered(session.Subscribe)),
		"resources/unsubscribe": script.As(answered(session.Unsubscribe)),
		"listen": func(ctx context.Context, raw json.RawMessage, _ any) (any, error) {
			var wanted struct{ URIs []string }
			if err := json.Unmarshal(raw, &wanted); err != nil {
				return nil, err
			}
			for _, uri := range wanted.URIs {
				if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
					return nil, err
				}
			}
			return struct{}{}, nil
		},
		"tools/list": script.Drained("tools", func(ctx context.Context, cursor string) ([]*mcp.Tool, string, error) {
			page, err := session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return page.Tools, page.NextCursor, nil
		}),
		"resources/list": script.Drained("resources", func(ctx context.Context, cursor string) ([]*mcp.Resource, string, error) {
			page, err := session.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return page.Resources, page.NextCursor, nil
		}),
		"resources/templates/list": script.Drained("resourceTemplates", func(ctx context.Context, cursor string) ([]*mcp.ResourceTemplate, string, error) {
			page, err := session.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return page.ResourceTemplates, page.NextCursor, nil
		}),
		"prompts/list": script.Drained("prompts", func(ctx context.Context, cursor string) ([]*mcp.Prompt, string, error) {
			page, err := session.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return page.Prompts, page.NextCursor, nil
		}),
	}
}

// answered gives a method that returns an error alone the empty result that the server sent.
func answered[P any](send func(context.Context, P) error) func(context.Context, P) (struct{}, error) {
	return func(ctx context.Context, params P) (struct{}, error) { return struct{}{}, send(ctx, params) }
}

func refusal(err error) *script.Error {
	var refused *jsonrpc.Error
	if !errors.As(err, &refused) {
		return nil
	}
	return &script.Error{Code: refused.Code, Message: refused.Message, Data: refused.Data}
}

func connectAndPlay(played script.Script, transcript *script.Transcript) error {
	options := &mcp.ClientSessionOptions{}
	if played.Legacy() {
		options.ProtocolVersion = handshakeVersion
	}
	session, err := client(played, transcript).Connect(context.Background(), transport(played.Transport), options)
	if err != nil {
		return err
	}
	transcript.Server = session.InitializeResult()
	modern := session.InitializeResult().ProtocolVersion > handshakeVersion
	if err := transcript.Play(played, verbs(session, modern), refusal); err != nil {
		return err
	}
	// A server that has to be ended by a signal says so by its exit status, which is no part of what a client sees.
	var exited *exec.ExitError
	if err := session.Close(); err != nil && !errors.As(err, &exited) {
		return err
	}
	return nil
}
