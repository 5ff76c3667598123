package agent

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nodeagent/nodeagent/internal/notify"
)

// health answers what a supervisor of the agent asks over HTTP: has every check looked once, is the configuration
// that it was given in force, and do looks go on? It says nothing of the node: a sick node is what a healthy agent
// reports.
type health struct {
	progress   *notify.Progress
	configured *configState
}

// ready returns why the agent is not ready: checks that have not looked once, or a configuration that it refuses and
// goes on without, so that a rollout of that configuration stops.
func (h health) ready() error {
	if invalid, _ := h.configured.trouble(); invalid != nil {
		return invalid
	}
	if waiting := h.progress.Waiting(); len(waiting) > 0 {
		return fmt.Errorf("has not looked once yet: %s", strings.Join(waiting, ", "))
	}
	return nil
}

// alive returns why the agent should be started again.
func (h health) alive() error { return h.progress.Stuck() }

// handler adds /readyz and /healthz to what next serves.
func (h health) handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET /readyz", verdict(h.ready))
	mux.HandleFunc("GET /healthz", verdict(h.alive))
	return mux
}

func verdict(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
