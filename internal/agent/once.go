package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/remediate"
)

// Bench is an inspection by hand: what "nodeagent inspect" and "nodeagent clean" work with. It shares the memory of the
// daemon where one runs, and keeps its own where none does, so that looking several times counts either way.
type Bench struct {
	clients   *Clients
	store     *store.Store // nil while a daemon runs: the memory is the daemon's
	inspector *inspect.Inspector
	runner    *remediate.Runner
	history   inspect.History
	deaf      error // why the memory of the daemon that runs is not known; nil where it is, or none runs
}

// passLimit bounds one inspection by hand, whatever hangs: people wait for it, and want to know what is known so far.
const passLimit = 9500 * time.Millisecond

// saveLimit is how long the disk may take to keep what an inspection by hand saw. Not kept is seen for the first time
// next time.
const saveLimit = 500 * time.Millisecond

// OpenBench prepares an inspection by hand.
func OpenBench(ctx context.Context, cfg config.Config, log *slog.Logger) (*Bench, error) {
	clients, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	b := &Bench{clients: clients, inspector: newInspector(cfg, clients, log).Within(passLimit),
		history: inspect.History{}}
	if b.runner, err = newRunner(cfg, clients, log, func() inspect.History { return b.history }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if err := b.recall(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bench) recall(ctx context.Context, cfg config.Config) error {
	history, err := status.AskHistory(ctx, cfg.Socket)
	if err == nil {
		b.history = history
		return nil
	}
	if !errors.Is(err, status.ErrNotRunning) {
		b.deaf = fmt.Errorf("%w; nothing counts as seen before", err)
		return nil
	}
	opened, err := store.Open(filepath.Join(cfg.StateDir, "state.db"))
	if errors.Is(err, store.ErrInUse) {
		b.deaf = fmt.Errorf("an agent runs but does not answer on %s: %w; nothing counts as seen before", cfg.Socket,
			err)
		return nil
	}
	if err != nil {
		return err
	}
	b.store = opened
	if data, ok := opened.Bucket("inspect").Get(historyKey); ok {
		_ = json.Unmarshal(data, &b.history) // unreadable: seen for the first time
	}
	return nil
}

// Close gives everything up.
func (b *Bench) Close() error {
	err := b.clients.Close()
	if b.store != nil {
		err = errors.Join(err, b.store.Close())
	}
	return err
}

// Pass inspects once; without kinds, all of them.
func (b *Bench) Pass(ctx context.Context, kinds ...inspect.Kind) (inspect.Report, error) {
	report, history := b.inspector.Pass(ctx, b.history, kinds...)
	if err := ctx.Err(); err != nil {
		return report, err
	}
	b.history = history
	if b.deaf != nil {
		report.Errors = append(report.Errors, inspect.Failure{What: "agent", Error: b.deaf.Error()})
	}
	if b.store == nil || len(kinds) > 0 {
		return report, nil // half a look is no pass
	}
	data, err := json.Marshal(history)
	if err != nil {
		return report, err
	}
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		_ = b.store.Bucket("inspect").Put(historyKey, data)
	}()
	select {
	case <-saved:
	case <-time.After(saveLimit):
	}
	return report, nil
}

// Plan says what would be done about the leftovers of a report.
func (b *Bench) Plan(ctx context.Context, report inspect.Report) ([]remediate.Step, error) {
	return b.runner.Plan(ctx, report)
}

// LockWait is how long a release by hand waits for another one to end.
const LockWait = 30 * time.Second

// Release releases them. It says for whom it waits where another release is running.
func (b *Bench) Release(ctx context.Context, report inspect.Report, waiting func(why string)) (remediate.Outcome,
	error) {
	return b.runner.Waiting(LockWait, waiting).Release(ctx, report)
}
