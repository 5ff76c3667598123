package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
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
	Now       finding.Stamp      `json:"now"`
	Checks    []CheckStatus      `json:"checks"`
	Findings  []finding.Believed `json:"findings"`
	Leftovers *inspect.Report    `json:"leftovers,omitempty"` // the last inspection
	Release   ReleaseStatus      `json:"release"`
	Trouble   []string           `json:"trouble"` // what the agent itself suffers from
}

// CheckStatus is what is believed of one check.
type CheckStatus struct {
	Check  string         `json:"check"`
	Status finding.Status `json:"status"`
	Since  finding.Stamp  `json:"since"`
	Error  string         `json:"error,omitempty"`
	Why    string         `json:"why,omitempty"`
}

// ReleaseStatus is what the agent may do about leftovers and what it did last.
type ReleaseStatus struct {
	Mode string   `json:"mode"`
	Last []string `json:"last"` // one line for each step, planned or done
}

// answers is what the socket can tell.
type answers struct {
	status  func() Status
	history func() inspect.History
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
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.answers.status()) })
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.answers.history()) })
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

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client that went away is the only one to tell
}

// ErrNotRunning says that no agent answers on the socket.
var ErrNotRunning = errors.New("no agent is running")

// AskStatus asks the running agent what it believes.
func AskStatus(ctx context.Context, socket string) (Status, error) {
	var status Status
	return status, ask(ctx, socket, "/status", &status)
}

func askHistory(ctx context.Context, socket string) (inspect.History, error) {
	var history inspect.History
	return history, ask(ctx, socket, "/history", &history)
}

func ask(ctx context.Context, socket, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if err != nil {
		return fmt.Errorf("ask the agent on %s: %w", socket, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the agent on %s: %s", socket, response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 64<<20)).Decode(answer); err != nil {
		return fmt.Errorf("answer of the agent on %s: %w", socket, err)
	}
	return nil
}
