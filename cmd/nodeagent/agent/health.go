package agent

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/internal/notify"
)

// health answers kubelet's probes: has every check run once, is the given configuration in force, and do checks still
// run? The answers do not depend on the node's health: a healthy agent reports a sick node.
type health struct {
	progress *notify.Progress
	refused  func() error
}

// ready returns why the agent is not ready: checks that have not run yet, or a configuration that it refuses. The
// latter stops a rollout of that configuration.
func (h health) ready() error {
	if err := h.refused(); err != nil {
		return err
	}
	if waiting := h.progress.Waiting(); len(waiting) > 0 {
		return fmt.Errorf("not run yet: %s", strings.Join(waiting, ", "))
	}
	return nil
}

// handler adds /readyz and /healthz to the paths that next serves.
func (h health) handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET /readyz", status.Probe(h.ready))
	mux.HandleFunc("GET /healthz", status.Probe(h.progress.Stuck))
	return mux
}
