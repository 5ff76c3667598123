package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Status is what the running agent believes: the answer of the socket and the JSON contract of "nodeagent status".
type Status struct {
	Version   string             `json:"version"`
	Node      string             `json:"node"`
	PID       int                `json:"pid"`
	Started   finding.Stamp      `json:"started"`
	Readiness Readiness          `json:"readiness"`
	Now       finding.Stamp      `json:"now"`
	Checks    []CheckStatus      `json:"checks"`
	Findings  []finding.Believed `json:"findings"`
	Leftovers *inspect.Report    `json:"leftovers,omitempty"` // the last inspection
	Release   ReleaseStatus      `json:"release"`
	Told      []Told             `json:"told"`    // how telling others goes
	Trouble   []string           `json:"trouble"` // what the agent itself suffers from
}

// Readiness is whether the agent does what it was installed for, and why not.
type Readiness struct {
	Ready bool     `json:"ready"`
	Why   []string `json:"why"`
}

// CheckStatus is what is believed of one check.
type CheckStatus struct {
	Check  string         `json:"check"`
	Status finding.Status `json:"status"`
	Since  finding.Stamp  `json:"since"`
	Error  string         `json:"error,omitempty"`
	Why    string         `json:"why,omitempty"`

	Condition string `json:"condition,omitempty"` // of the Node, that what is fatal becomes
}

// ReleaseStatus is what the agent may do about leftovers and what it did last.
type ReleaseStatus struct {
	Mode string   `json:"mode"`
	Last []string `json:"last"` // one line for each step, planned or done
}

// answers is what the socket can tell.
type answers struct {
	status  func() (Status, error)
	history func() (inspect.History, error)
	place   func() (Place, error)
	reload  func(context.Context) error
}

// socketServer answers on a Unix socket that only root can open.
type socketServer struct {
	path    string
	answers answers
}

// Run serves until ctx ends.
func (s socketServer) Run(ctx context.Context) error {
	listener, err := listen(s.path)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", answer(s.answers.status))
	mux.HandleFunc("GET /history", answer(s.answers.history))
	mux.HandleFunc("GET /place", answer(s.answers.place))
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) {
		if err := s.answers.reload(context.WithoutCancel(r.Context())); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		reply(w, struct{}{})
	})
	return serve(ctx, listener, mux)
}

// serve runs an HTTP server on listener until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 1 << 14}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen opens the socket for root alone. A socket of a dead agent is removed; the state file's lock has shown before
// that no other agent is alive.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func answer[T any](ask func() (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		v, err := ask()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		reply(w, v)
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client that went away is the only one to tell
}

// ErrNotRunning says that no agent answers on the socket.
var ErrNotRunning = errors.New("no agent is running")

// AskStatus asks the running agent what it believes.
func AskStatus(ctx context.Context, socket string) (Status, error) {
	var status Status
	return status, ask(ctx, socket, http.MethodGet, "/status", &status)
}

// AskReload has the running agent read its configuration anew. ErrRefused says that it goes on with the one it had.
func AskReload(ctx context.Context, socket string) error {
	var none struct{}
	return ask(ctx, socket, http.MethodPost, "/reload", &none)
}

func askHistory(ctx context.Context, socket string) (inspect.History, error) {
	var history inspect.History
	return history, ask(ctx, socket, http.MethodGet, "/history", &history)
}

func ask(ctx context.Context, socket, method, path string, answer any) error {
	limit := 5 * time.Second
	if method != http.MethodGet {
		limit = reloadLimit + time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("%w: %s: %w", ErrNotRunning, socket, op.Err)
	}
	if err != nil {
		return fmt.Errorf("ask the agent on %s: %w", socket, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return complaint(socket, response)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 64<<20)).Decode(answer); err != nil {
		return fmt.Errorf("answer of the agent on %s: %w", socket, err)
	}
	return nil
}

// complaint words an answer that is none.
func complaint(socket string, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16)) // half an explanation is better than none
	why := strings.TrimSpace(string(text))
	if response.StatusCode == http.StatusUnprocessableEntity {
		return fmt.Errorf("%w: %s", ErrRefused, strings.TrimPrefix(why, ErrRefused.Error()+": "))
	}
	return fmt.Errorf("ask the agent on %s: %s: %s", socket, response.Status, why)
}
