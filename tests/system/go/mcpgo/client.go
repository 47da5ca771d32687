package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"mcproxy.test/system/script"
)

// Codes that the SDK's errors stand for. It tells no caller of any other, and of no data.
var codes = map[int64]error{
	mcp.INVALID_REQUEST:  mcp.ErrInvalidRequest,
	mcp.METHOD_NOT_FOUND: mcp.ErrMethodNotFound,
	mcp.INVALID_PARAMS:   mcp.ErrInvalidParams,
	mcp.INTERNAL_ERROR:   mcp.ErrInternalError,
}

func connection(played script.Script) (transport.Interface, error) {
	switch t := played.Transport; t.Kind {
	case "stdio":
		options := []transport.StdioOption{transport.WithCommandStderrWriter(os.Stderr)}
		return transport.NewStdioWithOptions(t.Command[0], t.Environment(), t.Command[1:], options...), nil
	case "sse":
		return transport.NewSSE(t.URL)
	default:
		var options []transport.StreamableHTTPCOption
		if played.Legacy() {
			options = append(options, transport.WithContinuousListening())
		}
		return transport.NewStreamableHTTP(t.URL, options...)
	}
}

// answers are the handlers of what a server may ask.
type answers struct{ transcript *script.Transcript }

func (a answers) CreateMessage(_ context.Context, request mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	answer := &mcp.CreateMessageResult{}
	a.transcript.Asked("sampling/createMessage", request.CreateMessageParams, answer)
	return answer, nil
}

func (a answers) Elicit(_ context.Context, request mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	answer := &mcp.ElicitationResult{}
	a.transcript.Asked("elicitation/create", request.Params, answer)
	return answer, nil
}

func (a answers) ListRoots(context.Context, mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	answer := &mcp.ListRootsResult{}
	a.transcript.Asked("roots/list", struct{}{}, answer)
	return answer, nil
}

func newClient(played script.Script, transcript *script.Transcript) (*client.Client, error) {
	wire, err := connection(played)
	if err != nil {
		return nil, err
	}
	given := answers{transcript}
	options := []client.ClientOption{
		client.WithSamplingHandler(given), client.WithElicitationHandler(given), client.WithRootsHandler(given),
		client.WithClientCapabilities(mcp.ClientCapabilities{
			Elicitation: &mcp.ElicitationCapability{Form: &struct{}{}, URL: &struct{}{}},
		}),
	}
	if played.Legacy() {
		options = append(options, client.WithProtocolVersion(handshakeVersion))
	}
	return client.NewClient(wire, options...), nil
}

// A session is a client that is connected.
type session struct {
	*client.Client
	acknowledged chan struct{} // closed when the server has accepted the subscriptions
}

func (s *session) modern() bool { return s.ProtocolVersion() > handshakeVersion }

func (s *session) hear(transcript *script.Transcript) {
	s.OnNotification(func(notification mcp.JSONRPCNotification) {
		if notification.Method == mcp.MethodNotificationSubscriptionsAcknowledged {
			close(s.acknowledged)
		}
		transcript.Heard(notification.Method, notification.Params)
	})
}

func (s *session) call(ctx context.Context, raw json.RawMessage, token any) (any, error) {
	request := mcp.CallToolRequest{}
	if err := json.Unmarshal(raw, &request.Params); err != nil {
		return nil, err
	}
	if token != nil {
		request.Params.Meta = &mcp.Meta{ProgressToken: token}
	}
	return s.CallTool(ctx, request)
}

func (s *session) listen(ctx context.Context, raw json.RawMessage, _ any) (any, error) {
	var wanted struct{ URIs []string }
	if err := json.Unmarshal(raw, &wanted); err != nil {
		return nil, err
	}
	if !s.modern() {
		for _, uri := range wanted.URIs {
			if err := s.Subscribe(ctx, mcp.SubscribeRequest{Params: mcp.SubscribeParams{URI: uri}}); err != nil {
				return nil, err
			}
		}
		return struct{}{}, nil
	}
	ended := make(chan error, 1)
	filter := mcp.SubscriptionFilter{ToolsListChanged: true, ResourceSubscriptions: wanted.URIs}
	if _, err := s.ListenAsync(context.Background(), filter, func(err error) { ended <- err }); err != nil {
		return nil, err
	}
	select {
	case <-s.acknowledged:
		return struct{}{}, nil
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *session) verbs() map[string]script.Verb {
	return map[string]script.Verb{
		"tools/call": s.call,
		"listen":     s.listen,
		"resources/read": sending(func(ctx context.Context, params mcp.ReadResourceParams) (any, error) {
			return s.ReadResource(ctx, mcp.ReadResourceRequest{Params: params})
		}),
		"prompts/get": sending(func(ctx context.Context, params mcp.GetPromptParams) (any, error) {
			return s.GetPrompt(ctx, mcp.GetPromptRequest{Params: params})
		}),
		"completion/complete": sending(func(ctx context.Context, params mcp.CompleteParams) (any, error) {
			return s.Complete(ctx, mcp.CompleteRequest{Params: params})
		}),
		"logging/setLevel": sending(func(ctx context.Context, params mcp.SetLevelParams) (any, error) {
			return struct{}{}, s.SetLevel(ctx, mcp.SetLevelRequest{Params: params})
		}),
		"resources/subscribe": sending(func(ctx context.Context, params mcp.SubscribeParams) (any, error) {
			return struct{}{}, s.Subscribe(ctx, mcp.SubscribeRequest{Params: params})
		}),
		"resources/unsubscribe": sending(func(ctx context.Context, params mcp.UnsubscribeParams) (any, error) {
			return struct{}{}, s.Unsubscribe(ctx, mcp.UnsubscribeRequest{Params: params})
		}),
		"ping": sending(func(ctx context.Context, _ struct{}) (any, error) { return struct{}{}, s.Ping(ctx) }),
		"tools/list": script.Drained("tools", func(ctx context.Context, cursor string) ([]mcp.Tool, string, error) {
			page, err := s.ListToolsByPage(ctx, mcp.ListToolsRequest{PaginatedRequest: from(cursor)})
			if err != nil {
				return nil, "", err
			}
			return page.Tools, string(page.NextCursor), nil
		}),
		"resources/list": script.Drained("resources", func(ctx context.Context, cursor string) ([]mcp.Resource, string, error) {
			page, err := s.ListResourcesByPage(ctx, mcp.ListResourcesRequest{PaginatedRequest: from(cursor)})
			if err != nil {
				return nil, "", err
			}
			return page.Resources, string(page.NextCursor), nil
		}),
		"resources/templates/list": script.Drained("resourceTemplates", func(ctx context.Context, cursor string) ([]mcp.ResourceTemplate, string, error) {
			page, err := s.ListResourceTemplatesByPage(ctx, mcp.ListResourceTemplatesRequest{PaginatedRequest: from(cursor)})
			if err != nil {
				return nil, "", err
			}
			return page.ResourceTemplates, string(page.NextCursor), nil
		}),
		"prompts/list": script.Drained("prompts", func(ctx context.Context, cursor string) ([]mcp.Prompt, string, error) {
			page, err := s.ListPromptsByPage(ctx, mcp.ListPromptsRequest{PaginatedRequest: from(cursor)})
			if err != nil {
				return nil, "", err
			}
			return page.Prompts, string(page.NextCursor), nil
		}),
	}
}

// sending is a verb of an SDK's method that takes its parameters by value.
func sending[P any](send func(context.Context, P) (any, error)) script.Verb {
	return script.As(func(ctx context.Context, params *P) (any, error) { return send(ctx, *params) })
}

func from(cursor string) mcp.PaginatedRequest {
	return mcp.PaginatedRequest{Params: mcp.PaginatedParams{Cursor: mcp.Cursor(cursor)}}
}

func refusal(err error) *script.Error {
	var lost *transport.Error
	if errors.As(err, &lost) {
		return nil
	}
	for code, known := range codes {
		if errors.Is(err, known) {
			return &script.Error{Code: code, Message: strings.TrimPrefix(err.Error(), known.Error()+": ")}
		}
	}
	return &script.Error{Message: err.Error()}
}

func connectAndPlay(played script.Script, transcript *script.Transcript) error {
	ctx := context.Background()
	connected, err := newClient(played, transcript)
	if err != nil {
		return err
	}
	s := &session{connected, make(chan struct{})}
	s.hear(transcript)
	if err := s.Start(ctx); err != nil {
		return err
	}
	opening := mcp.InitializeRequest{}
	opening.Params.ClientInfo = mcp.Implementation{Name: "mcp-go", Version: "1"}
	initialized, err := s.Initialize(ctx, opening)
	if err != nil {
		return err
	}
	transcript.Server = initialized
	if s.modern() { // each request says what it wants to hear
		if err := s.SetLevel(ctx, mcp.SetLevelRequest{Params: mcp.SetLevelParams{Level: mcp.LoggingLevelInfo}}); err != nil {
			return err
		}
	}
	if err := transcript.Play(played, s.verbs(), refusal); err != nil {
		return err
	}
	// A server that has to be ended by a signal says so by its exit status, which is no part of what a client sees.
	var exited *exec.ExitError
	if err := s.Close(); err != nil && !errors.As(err, &exited) {
		return err
	}
	return nil
}
