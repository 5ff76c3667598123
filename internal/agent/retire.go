package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// RetirePatch returns the patch of nodes/status that removes every condition from a Node that agents of this
// configuration write. It is for removing agents whose credentials go with them: a DaemonSet's.
func RetirePatch(cfg config.Config, log *slog.Logger) ([]byte, error) {
	clients, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	defer clients.Close()
	var namings []finding.Condition
	for _, c := range Checks(cfg, clients.Host, checks.Deps{}) {
		namings = append(namings, c.Condition)
	}
	return condition.Removal(condition.Names(namings, cfg.Report.Conditions.Vocabulary))
}

// Retire removes what the agent has written to the Node, and returns what that was. No agent may run.
func Retire(ctx context.Context, cfg config.Config, log *slog.Logger) ([]string, error) {
	if _, err := status.AskStatus(ctx, cfg.Socket); !errors.Is(err, status.ErrNotRunning) {
		return nil, fmt.Errorf("an agent runs and would write them again: systemctl stop nodeagent")
	}
	store, err := store.Open(filepath.Join(cfg.StateDir, "state.db"))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	clients, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	defer clients.Close()
	if clients.Client == nil {
		return nil, nil // there is no Node
	}
	removed, err := condition.Retire(ctx, clients.Client, store.Bucket("conditions"))
	key, taintErr := taint.Retire(ctx, clients.Client, store.Bucket("taint"))
	if key != "" {
		removed = append(removed, "taint "+key)
	}
	return removed, errors.Join(err, taintErr)
}
