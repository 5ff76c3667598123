package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// serviceStatus is the reporter to the service manager: one line in "systemctl status".
type serviceStatus struct {
	manager *notify.Manager
	checks  []detect.Check
	changed chan struct{} // one pending signal is enough: the newest line is sent
	line    atomic.Pointer[string]
}

// Name identifies the reporter.
func (s *serviceStatus) Name() string { return "service-manager" }

// Update takes the newest state into account.
func (s *serviceStatus) Update(state finding.State, _ []finding.Update) {
	line := summary(s.checks, state)
	if last := s.line.Swap(&line); last == nil || *last != line {
		report.Wake(s.changed)
	}
}

// Run updates the service manager until ctx ends.
func (s *serviceStatus) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
		s.manager.Status(*s.line.Load())
	}
}

// summary describes a state in one line: the faults and the unknown checks.
func summary(checks []detect.Check, state finding.State) string {
	counts := finding.Counts{}
	for _, b := range state.Raised() {
		counts[b.Severity]++
	}
	unknown := 0
	for _, c := range checks {
		if s, ok := state[c.ID]; !ok || s.Status == finding.StatusUnknown {
			unknown++
		}
	}
	parts := counts.Texts()
	if unknown > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d checks cannot tell", unknown, len(checks)))
	}
	if len(parts) == 0 {
		return "nothing is wrong with this node"
	}
	return strings.Join(parts, ", ") + ": see nodeagent status"
}
