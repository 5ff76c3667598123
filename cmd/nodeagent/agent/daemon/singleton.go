package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/internal/store"
)

const (
	// retryEvery is how often an agent on standby checks whether the other agent has ended.
	retryEvery = 5 * time.Second
	// cleanupGrace is how long the service manager of the other agent may take to clean up after it: systemd removes
	// the directory of the socket, and must not remove ours.
	cleanupGrace = 2 * time.Second
)

// acquire opens the state file. If another agent has it, because one was installed as a package and one as a DaemonSet,
// the later one stays on standby: it logs that, does no work, is alive and not ready, and takes over when the other one
// has ended. It does not exit: that would be a crash loop. The store is nil if ctx has ended.
func acquire(ctx context.Context, cfg config.Config, log *slog.Logger, manager *notify.Manager) (*store.Store, error) {
	path := filepath.Join(cfg.StateDir, "state.db")
	opened, err := store.Open(path)
	if !errors.Is(err, store.ErrInUse) {
		return opened, err
	}
	other := describeOther(ctx, cfg)
	log.Warn("another agent runs on this node: waiting on standby until it ends", "other", other, "err", err)
	waiting, acquired := context.WithCancel(ctx)
	defer acquired()
	err = supervise(waiting, log, []agent.Component{
		{Name: "store", Run: func(ctx context.Context) error {
			defer acquired()
			opened, err = retryStore(ctx, path)
			return err
		}},
		{Name: "service-manager", Run: func(ctx context.Context) error {
			return manager.Wait(ctx, "on standby: another agent runs on this node: "+other)
		}},
		{Name: "health", Run: serveStandby(cfg.Report.Metrics, other, log)},
	})
	if err != nil || opened == nil {
		return nil, err
	}
	log.Info("the other agent has ended: taking over")
	return opened, nil
}

// retryStore opens the state file once it is free. It returns nil if ctx ends first.
func retryStore(ctx context.Context, path string) (*store.Store, error) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-ticker.C:
		}
		opened, err := store.Open(path)
		if errors.Is(err, store.ErrInUse) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(cleanupGrace):
		}
		return opened, err
	}
}

func describeOther(ctx context.Context, cfg config.Config) string {
	other, err := status.AskStatus(ctx, cfg.Socket)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return fmt.Sprintf("process %d, version %s", other.PID, other.Version)
}

// serveStandby answers kubelet's probes on standby: alive and not ready. If the other agent listens on the same
// address, kubelet gets that agent's answers.
func serveStandby(settings config.Metrics, other string, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if !settings.Enabled {
			return nil
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /readyz", status.Probe(func() error {
			return fmt.Errorf("on standby: another agent runs on this node (%s)", other)
		}))
		mux.HandleFunc("GET /healthz", status.Probe(func() error { return nil }))
		err := status.ServeLoopback(ctx, settings.Listen, mux)
		if errors.Is(err, syscall.EADDRINUSE) {
			log.Warn("answer probes on standby failed", "err", err)
			return nil
		}
		return err
	}
}
