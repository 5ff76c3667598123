package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/configmap"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// RetirePatch returns the patch of nodes/status that removes from a Node every condition that agents of this
// configuration write. It is for removing agents whose credentials are removed with them: a DaemonSet's.
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

// Retire removes everything that the agent has written about the node (conditions, taint, ConfigMap and claims) and
// returns one sentence for each. Everything written by others stays, also next to it. No agent may run.
func Retire(ctx context.Context, cfg config.Config, log *slog.Logger) ([]string, error) {
	if _, err := status.AskStatus(ctx, cfg.Socket); !errors.Is(err, status.ErrNotRunning) {
		return nil, fmt.Errorf("an agent runs and would write them again: systemctl stop nodeagent")
	}
	store, err := store.Open(filepath.Join(cfg.StateDir, "state.db"))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if err := store.Trouble(); err != nil {
		return nil, fmt.Errorf("read which conditions, taint and ConfigMap this agent wrote: %w", err)
	}
	clients, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	defer clients.Close()
	if clients.Client == nil {
		return nil, nothingLeft(store)
	}
	var removed []string
	note := func(what string, names []string, err error) error {
		for _, name := range names {
			removed = append(removed, what+name)
		}
		return err
	}
	conditions, err := condition.Retire(ctx, clients.Client, store.Bucket("conditions"))
	err = note("condition removed: ", conditions, err)
	keys, taintErr := taint.Retire(ctx, clients.Client, store.Bucket("taint"))
	err = errors.Join(err, note("taint removed: ", keys, taintErr))
	maps, mapErr := configmap.Retire(ctx, clients.Client, clients.Host.NodeName, configMapNamespace(cfg),
		store.Bucket("configmap"))
	err = errors.Join(err, note("ConfigMap removed: ", maps, mapErr))
	memory := store.Bucket("fleet")
	if _, claimed := memory.Get(claimedKey); !claimed {
		return removed, err
	}
	claims, claimErr := newFleet(cfg.Fleet, clients.Client, ownNamespace(cfg), cfg.Report.Taint.Key, memory, log).Retire(ctx,
		clients.Host.NodeName)
	return removed, errors.Join(err, note("claim removed: ", claims, claimErr))
}

// nothingLeft returns an error if the agent wrote about a Node which it cannot reach: no apiserver is configured any more.
func nothingLeft(s *store.Store) error {
	written := errors.New("no apiserver is configured, but this agent wrote conditions, a taint, a ConfigMap or a claim: if the Node still " +
		"exists, remove them there")
	each := func(string, []byte) error { return written }
	_, claimed := s.Bucket("fleet").Get(claimedKey)
	if claimed || taint.Owed(s.Bucket("taint")) {
		return written
	}
	if err := s.Bucket("conditions").ForEach(each); err != nil {
		return err
	}
	return s.Bucket("configmap").ForEach(each)
}

// configMapNamespace returns the namespace of the node's ConfigMap.
func configMapNamespace(cfg config.Config) string {
	return cmp.Or(cfg.Report.ConfigMap.Namespace, ownNamespace(cfg))
}
