package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
	"github.com/nodeagent/nodeagent/pkg/web/settings"
)

// jetstreamDir holds the files of the NATS server in this process.
const jetstreamDir = "jetstream"

// slow is how long the worker's answer may take; if it takes longer, the log shows it, also if the client has left.
const slow = 5 * time.Second

// appender is the worker's append function.
type appender func(ctx context.Context, events []journal.Event) (journal.Appended, error)

// replica is this process's part in a group of replicas. A single center has no node.
type replica struct {
	settings cluster.Settings
	node     *cluster.Node // nil: a single center
	keep     time.Duration
	log      *slog.Logger
	waiting  func(error)

	center *eventcenter.Center
	words  *cluster.Words
}

// openReplica starts the NATS server in this process, or connects to external ones.
func (s *serveOptions) openReplica(dir string, log *slog.Logger, gate *gate) (*replica, error) {
	lines := rate.Sometimes{First: 1, Interval: 10 * time.Second} // reasons may change several times a second
	r := &replica{keep: s.keep, log: log, waiting: func(err error) {
		gate.wait(err)
		lines.Do(func() { log.Info("waiting", "for", err) })
	}}
	if s.replicas == "" {
		return r, nil
	}
	if eventcenter.HasJournal(dir) {
		return nil, fmt.Errorf("%s: %w", dir, sqlite.ErrOriginal)
	}
	joined, node, err := joinReplicas(s.replicas, dir, log)
	if err != nil {
		return nil, fmt.Errorf("--replicas %s: %w", s.replicas, err)
	}
	r.settings, r.node = joined, node
	return r, nil
}

// joinReplicas reads the settings file and applies it.
func joinReplicas(file, dir string, log *slog.Logger) (s cluster.Settings, node *cluster.Node, err error) {
	if s, err = settings.File(file, cluster.Read); err != nil {
		return s, nil, err
	}
	if s.Outside() {
		node, err = cluster.Connect(s.NATS.URL, s.NATS.CredentialsFile, s.NATS.CAFile, log)
		return s, node, err
	}
	c := cluster.Config{Name: s.Name, Dir: filepath.Join(dir, jetstreamDir), Listen: s.Listen, Log: log}
	secret, err := secretfile.Read(s.SecretFile)
	if err != nil {
		return s, nil, fmt.Errorf("secretFile: %w", err)
	}
	if c.Secret = strings.TrimSpace(string(secret)); len(c.Secret) < 16 {
		return s, nil, fmt.Errorf("secretFile %s: %d characters, want at least 16", s.SecretFile, len(c.Secret))
	}
	for _, p := range s.Peers {
		if p.Name != s.Name {
			c.Routes = append(c.Routes, p.Address)
		}
	}
	if s.TLS.CertFile != "" {
		if c.TLS, err = routeTLS(s.TLS); err != nil {
			return s, nil, fmt.Errorf("tls: %w", err)
		}
	}
	node, err = cluster.Start(c)
	return s, node, err
}

// routeTLS is the TLS configuration between replicas: both sides present a certificate signed by the authority.
func routeTLS(files cluster.TLS) (*tls.Config, error) {
	pool, err := web.Authorities(files.CAFile)
	if err == nil && pool == nil {
		err = errors.New("must be set") // the system's authorities vouch for no replica
	}
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	own := &web.Certificate{CertFile: files.CertFile, KeyFile: files.KeyFile}
	if _, err := own.Get(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		RootCAs: pool, GetCertificate: own.Get,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.Get(nil) }}, nil
}

// journal opens the replicas' common journal.
func (r *replica) journal(ctx context.Context, dir string, appended func([]journal.Record) []journal.Event) (
	eventcenter.Replicated, error) {
	return jetstream.Open(ctx, jetstream.Options{Dir: dir, Conn: r.node.Conn, Replicas: cluster.Peers, Log: r.log,
		CutOff: r.node.CutOff, Appended: appended, Keep: r.keep}, r.waiting)
}

// adopt sets the center once it is open.
func (r *replica) adopt(c *eventcenter.Center) {
	r.center = c
	r.words = &cluster.Words{Node: r.node, Model: c.Model, Log: r.log}
}

func (r *replica) ready() error {
	replicated, _ := r.center.Journal.(eventcenter.Replicated) // that of journal
	return cmp.Or(r.node.Alone(), replicated.Ready())
}

// forward makes the worker answer a question about subscriptions.
func (r *replica) forward(ctx context.Context, q api.Question) (api.Reply, error) {
	began := time.Now()
	reply, err := cluster.Ask[api.Question, api.Reply](ctx, r.node, q)
	after := time.Since(began)
	if err != nil && (!errors.Is(ctx.Err(), context.Canceled) || after >= slow) { // otherwise the client left early
		r.log.Warn("forward a request about subscriptions failed", "route", q.Route, "after", after, "err", err)
	}
	return reply, err
}

// answer answers requests that other replicas forward to the worker, until ctx ends.
func (r *replica) answer(ctx context.Context, answer func(context.Context, api.Question) api.Reply) {
	if r.node == nil {
		return
	}
	if err := cluster.Answer(ctx, r.node, answer); err != nil && ctx.Err() == nil {
		r.log.Error("answer other replicas' requests about subscriptions failed", "err", err)
	}
}

// run works until ctx ends: always for a single center, otherwise while this replica is the worker.
func (r *replica) run(ctx context.Context, work func(context.Context, appender)) {
	replicated, ok := r.center.Journal.(eventcenter.Replicated)
	if !ok {
		work(ctx, r.center.Journal.Append)
		return
	}
	worker := &cluster.Worker{Node: r.node, Name: r.settings.Name, Log: r.log,
		Work: func(ctx context.Context, term uint64) error {
			if err := r.center.Work(ctx, term); err != nil {
				return err
			}
			defer replicated.Leave()
			work(ctx, func(ctx context.Context, events []journal.Event) (journal.Appended, error) {
				return replicated.AppendAs(ctx, term, events)
			})
			<-ctx.Done()
			return context.Cause(ctx)
		}}
	var all sync.WaitGroup
	all.Go(func() { _ = worker.Run(ctx) })
	all.Go(func() {
		if err := r.words.Run(ctx); err != nil {
			r.log.Error("share signs of life of agents with other replicas failed", "err", err)
		}
	})
	all.Wait()
}

func (r *replica) close() {
	if r.node != nil {
		r.node.Close()
	}
}

// gate answers requests until the center is open: that it is alive, and why it waits.
type gate struct {
	handler atomic.Pointer[http.Handler]
	reason  atomic.Pointer[string]
}

func newGate() *gate {
	g := &gate{}
	g.wait(errors.New("the center starts"))
	return g
}

// wait sets the reason for waiting.
func (g *gate) wait(err error) { g.reason.Store(new(err.Error())) }

func (g *gate) open(h http.Handler) { g.handler.Store(&h) }

// ServeHTTP answers a request.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := g.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	status, answer := http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": *g.reason.Load()}
	if r.URL.Path == "/healthz" {
		status, answer = http.StatusOK, map[string]string{"status": "alive"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "10")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}
