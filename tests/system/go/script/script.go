// Package script plays scripts through one SDK's client, and prints the transcript of each. It knows no SDK; the form of
// a script is told in tests/fakes/clients/__init__.py.
package script

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// Pause is between progress and answer: some clients lose progress that they read together with the answer.
	Pause = 200 * time.Millisecond

	patience = 60 * time.Second // that any one step may take
)

type Transport struct {
	Kind    string            `json:"kind"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	URL     string            `json:"url"`
}

// Environment is that of a server to be started: ours, and what the script adds.
func (t Transport) Environment() []string {
	environment := os.Environ()
	for name, value := range t.Env {
		environment = append(environment, name+"="+value)
	}
	return environment
}

type Script struct {
	Mode      string                     `json:"mode"`
	Transport Transport                  `json:"transport"`
	Answers   map[string]json.RawMessage `json:"answers"`
	Steps     []step                     `json:"steps"`
}

// Legacy tells whether the client is to shake hands, rather than to find out which era the server speaks.
func (s Script) Legacy() bool { return s.Mode == "" || s.Mode == "legacy" }

type step struct {
	Do      string                     `json:"do"`
	Method  string                     `json:"method"`
	Quiet   bool                       `json:"quiet"`
	Params  json.RawMessage            `json:"params"`
	Answers map[string]json.RawMessage `json:"answers"`
}

// An Error is a JSON-RPC error that the server answered with.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

type message struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

type outcome struct {
	Do       string   `json:"do"`
	Result   any      `json:"result,omitempty"`
	Error    *Error   `json:"error,omitempty"`
	Late     bool     `json:"late,omitempty"`
	Progress [][3]any `json:"progress,omitempty"`
}

// A Transcript is all that one client met, in the order in which it met it.
type Transcript struct {
	Server        any       `json:"server"`
	Steps         []outcome `json:"steps"`
	Notifications []message `json:"notifications"`
	Questions     []message `json:"questions"`

	mutex    sync.Mutex
	news     chan struct{} // closed with each notification
	answers  map[string]json.RawMessage
	progress map[int][][3]any // by the step's number, which is the token too
	reported func()           // called with each report
}

func newTranscript(answers map[string]json.RawMessage) *Transcript {
	return &Transcript{
		Steps: []outcome{}, Notifications: []message{}, Questions: []message{},
		news: make(chan struct{}), answers: answers, progress: map[int][][3]any{}, reported: func() {},
	}
}

// Heard notes a notification; progress stands with its step.
func (t *Transcript) Heard(method string, params any) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	encoded := encode(params)
	if method == "notifications/progress" {
		var report struct {
			Token    any `json:"progressToken"`
			Progress any `json:"progress"`
			Total    any `json:"total"`
			Message  any `json:"message"`
		}
		decode(encoded, &report)
		if token, isNumber := report.Token.(float64); isNumber {
			number := int(token)
			t.progress[number] = append(t.progress[number], [3]any{report.Progress, report.Total, report.Message})
			t.reported()
		}
		return
	}
	t.Notifications = append(t.Notifications, message{method, encoded})
	close(t.news)
	t.news = make(chan struct{})
}

// Asked notes a question, and returns the script's answer to it in `answer`.
func (t *Transcript) Asked(method string, params any, answer any) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.Questions = append(t.Questions, message{method, encode(params)})
	decode(t.answers[method], answer)
}

// hears returns once a notification of the method has come, from the one at `since` on.
func (t *Transcript) hears(ctx context.Context, method string, since int) error {
	for {
		t.mutex.Lock()
		news := t.news
		for _, notification := range t.Notifications[since:] {
			if notification.Method == method {
				t.mutex.Unlock()
				return nil
			}
		}
		t.mutex.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A Verb sends one request. With a token, which is nil where a step is quiet, it asks for progress.
type Verb func(ctx context.Context, params json.RawMessage, token any) (any, error)

// As is a verb of an SDK's method that takes its parameters as `P`.
func As[P, R any](send func(context.Context, *P) (R, error)) Verb {
	return func(ctx context.Context, raw json.RawMessage, _ any) (any, error) {
		params := new(P)
		decode(raw, params)
		return send(ctx, params)
	}
}

// Drained is a verb that lists all pages; `page` returns a page's entries and the cursor of the next, "" after the last.
func Drained[E any](member string, page func(ctx context.Context, cursor string) ([]E, string, error)) Verb {
	return func(ctx context.Context, _ json.RawMessage, _ any) (any, error) {
		entries, cursor := []E{}, ""
		for {
			more, next, err := page(ctx, cursor)
			if err != nil {
				return nil, err
			}
			entries = append(entries, more...)
			if cursor = next; cursor == "" {
				return map[string][]E{member: entries}, nil
			}
		}
	}
}

// Play takes each step in turn. `refusal` is the JSON-RPC error in what the SDK returned, or nil.
func (t *Transcript) Play(s Script, verbs map[string]Verb, refusal func(error) *Error) error {
	before, began := 0, 0
	for number, step := range s.Steps {
		t.mutex.Lock()
		before, began = began, len(t.Notifications)
		for method, answer := range step.Answers {
			t.answers[method] = answer
		}
		t.mutex.Unlock()
		met := outcome{Do: step.Do}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		result, err := t.take(ctx, step, number, before, verbs)
		late := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			met.Result = result
		case late:
			met.Late = true
		default:
			if met.Error = refusal(err); met.Error == nil {
				return fmt.Errorf("step %d, %s: %w", number, step.Do, err)
			}
		}
		t.mutex.Lock()
		met.Progress = t.progress[number]
		t.mutex.Unlock()
		t.Steps = append(t.Steps, met)
	}
	return nil
}

func (t *Transcript) take(ctx context.Context, s step, number, since int, verbs map[string]Verb) (any, error) {
	var token any = number
	if s.Quiet {
		token = nil
	}
	switch s.Do {
	case "await":
		return nil, t.hears(ctx, s.Method, since)
	case "cancel":
		return t.givenUp(ctx, verbs["tools/call"], s.Params, token)
	}
	verb, known := verbs[s.Do]
	if !known {
		return nil, fmt.Errorf("no verb %q", s.Do)
	}
	return verb(ctx, s.Params, token)
}

// givenUp makes a call that is cancelled with its first report of progress.
func (t *Transcript) givenUp(ctx context.Context, call Verb, params json.RawMessage, token any) (any, error) {
	calling, giveUp := context.WithCancel(ctx)
	defer giveUp()
	t.onReport(giveUp)
	defer t.onReport(func() {})
	if _, err := call(calling, params, token); err == nil {
		return nil, errors.New("the call was answered before it could be given up")
	} else if calling.Err() == nil || ctx.Err() != nil {
		return nil, err
	}
	return map[string]bool{"cancelled": true}, nil
}

func (t *Transcript) onReport(do func()) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.reported = do
}

// Serve plays each script that comes as a line on stdin, on a connection of its own, and prints its transcript.
func Serve(connectAndPlay func(Script, *Transcript) error) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		var played Script
		decode(line, &played)
		transcript := newTranscript(played.Answers)
		check(connectAndPlay(played, transcript))
		transcript.mutex.Lock()
		_, err = fmt.Println(string(encode(transcript)))
		transcript.mutex.Unlock()
		check(err)
	}
}

func encode(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	var encoded strings.Builder
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	check(encoder.Encode(value))
	return json.RawMessage(strings.TrimSpace(encoded.String()))
}

func decode(encoded json.RawMessage, into any) {
	if len(encoded) > 0 {
		check(json.Unmarshal(encoded, into))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
