package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/notify"
	internalstore "github.com/nodeagent/nodeagent/internal/store"
)

const (
	// turnEvery is how often an agent that stands back looks whether the other one has ended.
	turnEvery = 5 * time.Second
	// tidyFor is how long the service manager of the other one may take to tidy up behind it: systemd removes the
	// directory of the socket, and must not remove ours.
	tidyFor = 2 * time.Second
)

// acquire opens the state file. Where another agent has it, because one was installed as a package and one as a
// DaemonSet, the later one stands back: it says so, does nothing, is alive and not ready, and takes over when the
// other one has ended. It does not end by itself: that would be a crash loop. The store is nil when ctx has ended.
func acquire(ctx context.Context, cfg config.Config, log *slog.Logger, manager *notify.Manager) (*internalstore.Store,
	error) {
	path := filepath.Join(cfg.StateDir, "state.db")
	store, err := internalstore.OpenStore(path)
	if !errors.Is(err, internalstore.ErrInUse) {
		return store, err
	}
	other := whoRuns(ctx, cfg)
	log.Warn("another agent runs on this node: this one stands back until that one ends", "other", other, "err", err)
	waiting, turn := context.WithCancel(ctx)
	defer turn()
	err = supervise(waiting, log, []component{
		{"turn", func(ctx context.Context) error {
			defer turn()
			store, err = retryStore(ctx, path)
			return err
		}},
		{"service-manager", func(ctx context.Context) error {
			return manager.Wait(ctx, "stands back: another agent runs on this node: "+other)
		}},
		{"health", standBack(cfg.Report.Metrics, other, log)},
	})
	if err != nil || store == nil {
		return nil, err
	}
	log.Info("the other agent has ended: this one takes over")
	return store, nil
}

// retryStore opens the state file when it is free. It returns nothing when ctx ends before.
func retryStore(ctx context.Context, path string) (*internalstore.Store, error) {
	ticker := time.NewTicker(turnEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-ticker.C:
		}
		store, err := internalstore.OpenStore(path)
		if errors.Is(err, internalstore.ErrInUse) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(tidyFor):
		}
		return store, err
	}
}

// whoRuns describes the agent that is in the way.
func whoRuns(ctx context.Context, cfg config.Config) string {
	status, err := status.AskStatus(ctx, cfg.Socket)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return fmt.Sprintf("process %d, version %s", status.PID, status.Version)
}

// standBack answers kubelet's probes while the agent does nothing: it is alive and not ready. Where the other agent has
// the same address, its answers must do.
func standBack(settings config.Metrics, other string, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if !settings.Enabled {
			return nil
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", settings.Listen)
		if err != nil {
			log.Warn("cannot answer probes while standing back", "err", err)
			return nil
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /readyz", verdict(func() error {
			return fmt.Errorf("stands back: another agent runs on this node (%s)", other)
		}))
		mux.HandleFunc("GET /healthz", verdict(func() error { return nil }))
		return status.Serve(ctx, listener, mux, status.PeerUser(&host.Host{}))
	}
}
