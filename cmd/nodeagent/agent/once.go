package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/podfacts"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Bench is an inspection by hand, for "nodeagent inspect" and "nodeagent clean". It uses the history of a running
// daemon, or else stores its own, so repeated passes count either way.
type Bench struct {
	clients   *Clients
	store     *store.Store // nil while a daemon runs, which owns the history
	inspector *inspect.Inspector
	runner    *release.Runner
	history   object.History
	evidence  verdict.Evidence // of the last pass
	noHistory error            // why the history of the running daemon is not known; nil if it is known or no daemon runs
}

// passLimit bounds one inspection by hand, whatever hangs: it then reports the results so far.
const passLimit = 9500 * time.Millisecond

// saveLimit is how long the disk may take to store the history of an inspection by hand. A history that was not stored
// does not count next time.
const saveLimit = 500 * time.Millisecond

// OpenBench prepares an inspection by hand.
func OpenBench(ctx context.Context, cfg config.Config, log *slog.Logger) (*Bench, error) {
	clients, err := OpenHost(cfg, log)
	if err != nil {
		return nil, err
	}
	b := &Bench{clients: clients, inspector: newInspector(cfg, clients, log).Within(passLimit),
		history: object.History{}}
	b.inspector.Recording(func(e verdict.Evidence) { b.evidence = e })
	if b.runner, err = newRunner(cfg, clients, log, func() object.History { return b.history }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if err := b.loadHistory(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bench) loadHistory(ctx context.Context, cfg config.Config) error {
	history, err := status.AskHistory(ctx, cfg.Socket)
	if err == nil {
		b.history = history
		return nil
	}
	if !errors.Is(err, status.ErrNotRunning) {
		b.noHistory = fmt.Errorf("%w; earlier passes do not count", err)
		return nil
	}
	opened, err := store.Open(filepath.Join(cfg.StateDir, "state.db"))
	if errors.Is(err, store.ErrInUse) {
		b.noHistory = fmt.Errorf("an agent runs but does not answer on %s: %w; earlier passes do not count", cfg.Socket,
			err)
		return nil
	}
	if err != nil {
		return err
	}
	b.store = opened
	if data, ok := opened.Bucket("inspect").Get(historyKey); ok {
		_ = json.Unmarshal(data, &b.history) // unreadable: start with an empty history
	}
	return nil
}

// Close closes the clients and the state file.
func (b *Bench) Close() error {
	return errors.Join(b.clients.Close(), b.FreeState())
}

// FreeState closes the state file, which only Pass needs, so that an agent that starts meanwhile does not wait for it.
func (b *Bench) FreeState() error {
	if b.store == nil {
		return nil
	}
	err := b.store.Close()
	b.store = nil
	return err
}

// About makes the inspector complete the proof of this pod before that of others: see inspect.Inspector.
func (b *Bench) About(pod string) { b.inspector.About(pod) }

// Pass inspects once; without kinds it inspects all of them.
func (b *Bench) Pass(ctx context.Context, kinds ...object.Kind) (object.Report, error) {
	report, history := b.inspector.Pass(ctx, b.history, kinds...)
	if err := ctx.Err(); err != nil {
		return report, err
	}
	b.history = history
	if b.noHistory != nil {
		failure := object.Failure{What: "agent", Error: b.noHistory.Error()}
		report.Errors, b.evidence.Failures = append(report.Errors, failure), append(b.evidence.Failures, failure)
	}
	if b.store == nil || len(kinds) > 0 {
		return report, nil // not a complete pass
	}
	data, err := json.Marshal(history)
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	bucket := b.store.Bucket("inspect")
	_, _ = host.Abandon(ctx, func(context.Context) (any, error) { return nil, bucket.Put(historyKey, data) })
	return report, nil
}

// Plan returns the steps that would release the leftovers of a report.
func (b *Bench) Plan(ctx context.Context, report object.Report) ([]release.Step, error) {
	return b.runner.Plan(ctx, report)
}

// Bundle returns the evidence of the last pass, with the facts about the node that are needed to understand it.
func (b *Bench) Bundle() bundle.Bundle {
	h := b.clients.Host
	kernel, err := h.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = err.Error()
	}
	return bundle.Bundle{Agent: Version, Kernel: kernel, Node: h.NodeName, Paths: h.Paths, Notes: b.clients.Notes,
		Evidence: b.evidence}
}

// LockWait is how long a release by hand waits for another release to end.
const LockWait = 30 * time.Second

// Release releases the leftovers of a report. It waits at most LockWait for another release.
func (b *Bench) Release(ctx context.Context, report object.Report, request release.Manual) (release.Outcome,
	error) {
	request.LockWait = LockWait
	return b.runner.Manual(request).Release(ctx, report)
}

// ExplainPod answers why one pod is stuck. The name must be valid. After the discovery of the node's layout it takes at
// most 11 s; calls that hang are left behind.
func ExplainPod(ctx context.Context, cfg config.Config, namespace, name string) (podstage.Answer, error) {
	clients, err := OpenHost(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return podstage.Answer{}, err
	}
	var lookups podfacts.Lookups
	if c := clients.Client; c != nil {
		lookups = podfacts.Lookups{Exists: c.Exists, Events: c.PodEvents, Claim: c.Claim, Volume: c.Volume,
			Attachment: c.Attachment}
	}
	return podstage.Evaluate(podfacts.Gather(ctx, clients.Host, lookups, namespace, name)), clients.Close()
}
