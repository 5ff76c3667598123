// Package status serves and queries the socket of the running agent, and limits the connections of its listeners.
package status

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
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

// Status is the state of the running agent: the answer of the socket and the JSON contract of "nodeagent status".
type Status struct {
	Version   string             `json:"version"`
	Node      string             `json:"node"`
	PID       int                `json:"pid"`
	Started   finding.Timestamp  `json:"started"`
	Readiness Readiness          `json:"readiness"`
	Now       finding.Timestamp  `json:"now"`
	Checks    []CheckStatus      `json:"checks"`
	Findings  []finding.Believed `json:"findings"`
	Leftovers *object.Report     `json:"leftovers,omitempty"` // the last inspection, without the objects of living pods
	Release   ReleaseStatus      `json:"release"`
	Repair    repair.Status      `json:"repair"`
	Sinks     []SinkStatus       `json:"sinks"` // of the reporters
	Fleet     fleet.Status       `json:"fleet,omitzero"`
	Trouble   []string           `json:"trouble"` // of the agent itself
}

// Readiness says whether the agent does its job, and if not, why.
type Readiness struct {
	Ready bool     `json:"ready"`
	Why   []string `json:"why"`
}

// CheckStatus is the state of one check.
type CheckStatus struct {
	Check  string            `json:"check"`
	Status finding.Status    `json:"status"`
	Since  finding.Timestamp `json:"since"`
	Error  string            `json:"error,omitempty"`
	Why    string            `json:"why,omitempty"`
	Access *finding.Access   `json:"access,omitempty"` // the missing access, if that is why the check is unknown

	Condition string `json:"condition,omitempty"` // of the Node, which reports its fatal findings
}

// ReleaseStatus is how far the agent may release leftovers, and its last release.
type ReleaseStatus struct {
	Mode string `json:"mode"`
	// one line for each step of the last release, and one for each kind and reason of planned steps
	Last []string `json:"last"`

	Quarantine *release.QuarantineState `json:"quarantine,omitempty"` // objects kept instead of deleted
}

// SocketServer answers on a Unix socket that only root can open.
type SocketServer struct {
	Path string

	// The answers.
	Status  func() (Status, error)
	History func() (object.History, error)
	Paths   func() (ContainerPaths, error)
	Reload  func(context.Context) error
}

// Run serves until ctx ends.
func (s SocketServer) Run(ctx context.Context) error {
	listener, err := listen(s.Path)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", answer(s.Status))
	mux.HandleFunc("GET /history", answer(s.History))
	mux.HandleFunc("GET /paths", answer(s.Paths))
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Reload(context.WithoutCancel(r.Context())); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		reply(w, struct{}{})
	})
	return serve(ctx, listener, mux, nil)
}

// listen opens the socket for root only. It removes the socket of a dead agent: the lock on the state file has shown
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
	_ = json.NewEncoder(w).Encode(v) // on an error the client has gone
}

// Probe answers a probe: 200 if ask returns nil, otherwise 503 and the error.
func Probe(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// ContainerPaths are the files that an agent still reads from the container that it has left, by paths that other
// processes can open: they lead through the agent's own descriptors. All are empty if the agent was started on the
// host. They are not published as links, because the PID of an ended process may be reused.
type ContainerPaths struct {
	Config         string `json:"config,omitempty"`         // configuration file
	ServiceAccount string `json:"serviceAccount,omitempty"` // directory of the pod's token
	Apiserver      string `json:"apiserver,omitempty"`      // host:port for it
}

// ErrRefused means that the configuration was not put in force; the previous one still is.
var ErrRefused = errors.New("the configuration is refused")

// ReloadLimit is how long a reload may take: the old agent ends, and the new one discovers the node.
const ReloadLimit = 25 * time.Second

// SinkStatus is the status of one reporter's sink.
type SinkStatus struct {
	Reporter    string    `json:"reporter"`          // condition, configmap, event, eventcenter
	Last        time.Time `json:"last,omitzero"`     // last successful write
	Waiting     int       `json:"waiting,omitempty"` // not written yet
	Failing     time.Time `json:"failing,omitzero"`  // since when writes fail; zero while they succeed
	Why         string    `json:"why,omitempty"`     // error of the last attempt
	Dropped     int       `json:"dropped,omitempty"` // because too much waited
	Endpoint    string    `json:"endpoint,omitempty"`
	Quarantined int       `json:"setAside,omitempty"` // the sink will never accept it; kept
	Seen        *Seen     `json:"seen,omitempty"`     // nil: the content was not observed
}

// Seen is the observed content of a sink, whoever wrote it.
type Seen struct {
	At    time.Time `json:"at"`
	Shows string    `json:"shows"`
}
