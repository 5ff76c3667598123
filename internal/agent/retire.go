package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
)

// Retire takes off the Node what the agent has written there, and returns what that was. No agent may run.
func Retire(ctx context.Context, cfg config.Config, log *slog.Logger) ([]string, error) {
	if _, err := AskStatus(ctx, cfg.Socket); !errors.Is(err, ErrNotRunning) {
		return nil, fmt.Errorf("an agent runs and would write it again: systemctl stop nodeagent")
	}
	store, err := finding.OpenStore(filepath.Join(cfg.StateDir, "state.db"))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	door, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	defer door.Close()
	if door.Client == nil {
		return nil, nil // there is no Node that could have been told
	}
	return condition.Retire(ctx, door.Client, store.Bucket("conditions"))
}
