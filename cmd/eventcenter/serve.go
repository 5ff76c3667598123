package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
	_ "time/tzdata" // timezones, for machines without them: 450 KB

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/pages"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/pkg/web/oidc"
)

const (
	defaultListen = "127.0.0.1:10685"
	stopLimit     = 10 * time.Second // for requests to end

	// connections in total, and per network: agents may share one address. Strangers' make room; see share.Listener
	maxConnections, networkConnections = 30_000, 15_000
)

type serveOptions struct {
	*options
	endpoint       web.Endpoint
	clusters, oidc string
	subscriptions  string
	replicas       string
	keep           time.Duration
	keepBytes      int64
	timezone       string
	alive          time.Duration
}

func newServe(o *options) *cobra.Command {
	s := &serveOptions{options: o}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the center",
		Long: `Run the center. It needs no flags: it listens on loopback, and at the first start creates its token in the file
"token" of its directory. It listens on another address only with TLS.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	command.Listen(flags, &s.endpoint, defaultListen)
	flags.StringVar(&s.clusters, "clusters", "", "file with the clusters that vouch for nodes and readers, and whose "+
		"nodes are watched; see docs/event-center-operate.md")
	flags.StringVar(&s.oidc, "oidc", "", "file with the identity provider at which people sign in; see "+
		"docs/event-center-operate.md")
	flags.StringVar(&s.subscriptions, "subscriptions", "", "file with the targets that events may be sent to, and with "+
		"subscriptions; see docs/event-center-operate.md")
	flags.StringVar(&s.replicas, "replicas", "", "file with the replicas of this center, which keep the journal together "+
		"in NATS JetStream; see docs/event-center-operate.md")
	flags.DurationVar(&s.keep, "keep", 30*24*time.Hour, "how long to keep events, in whole days; 0: for ever")
	flags.Int64Var(&s.keepBytes, "keep-bytes", 0, "maximum size of the journal, beyond which the oldest days are dropped; 0: no limit")
	flags.StringVar(&s.timezone, "timezone", "UTC", "time zone of the days of reports, such as Europe/Berlin")
	flags.DurationVar(&s.alive, "alive", time.Minute, "how long an agent without events may wait before it reports that it is alive")
	return cmd
}

// Validate returns the error in the flags.
func (s *serveOptions) Validate() error {
	if err := s.endpoint.Validate(); err != nil {
		return err
	}
	if s.keep < 0 || s.keepBytes < 0 || s.alive < time.Second {
		return errors.New("--keep and --keep-bytes must not be negative, and --alive at least 1s")
	}
	return nil
}

func (s *serveOptions) run(ctx context.Context) error {
	if err := s.Validate(); err != nil {
		return err
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "eventcenter: data in", event.Plain(dir))
	token, err := web.Token(client.TokenFile(dir))
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	location, err := time.LoadLocation(s.timezone)
	if err != nil {
		return fmt.Errorf("--timezone %q: %w", s.timezone, err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	w := &work{serveOptions: s, gate: newGate(), served: make(chan error, 1)}
	if w.clusters, err = s.openClusters(dir, token, log); err != nil {
		return err
	}
	if w.provider, err = oidc.Open("eventcenter", s.oidc); err != nil {
		return fmt.Errorf("--oidc: %w", err)
	}
	listener, address, err := s.endpoint.Listen(maxConnections, networkConnections, w.clusters.handshake)
	if err != nil {
		return err
	}
	w.address = address
	ctx, w.stop = context.WithCancel(ctx)
	defer w.stop()
	go func() { w.served <- web.Serve(ctx, listener, w.gate, stopLimit, log) }()
	if w.replica, err = s.openReplica(dir, log, w.gate); err != nil {
		return err
	}
	defer w.replica.close()
	options := eventcenter.Options{Dir: dir, Log: log, Location: location,
		Keep: journal.Limits{Age: s.keep, Bytes: s.keepBytes}}
	if w.replica.node != nil {
		options.Replicated = w.replica.journal
	}
	if w.center, err = eventcenter.Open(ctx, options); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped while waiting for the other replicas
		}
		return err
	}
	if w.deliveries, err = s.openDeliveries(ctx, w.center, w.replica); err != nil {
		return errors.Join(err, w.center.Close())
	}
	return errors.Join(w.serve(ctx), w.deliveries.Store.Close(), w.center.Close())
}

// work is the work of a center.
type work struct {
	*serveOptions
	center     *eventcenter.Center
	clusters   *clusters
	provider   *oidc.Provider // nil: people sign in only with codes
	deliveries *deliveries
	replica    *replica
	gate       *gate
	address    string
	served     chan error // receives the result of the server when it has ended
	stop       func()
}

// serve answers requests until ctx ends, then waits for open ones.
func (s *work) serve(ctx context.Context) error {
	center, clusters := s.center, s.clusters
	authenticate, signIn := s.provider.Beside(clusters.identity.Authenticate)
	if s.provider != nil {
		if err := s.provider.Share(ctx, s.deliveries.Store); err != nil {
			center.Log.Error("share the sign-in key failed: people must return to this replica", "err", err)
		}
	}
	sessions := web.NewSessions(s.deliveries.Store, "eventcenter", s.endpoint.Secured(), time.Now)
	s.replica.adopt(center)
	config := api.Config{Journal: center.Journal, Model: center.Model, Log: center.Log, Loopback: s.endpoint.Loopback(),
		Authenticate: sessions.Authenticate(authenticate), Authorizer: clusters.identity, Alive: s.alive, Stopping: ctx.Done(),
		SignIn: sessions.Invite, Reports: center.Reports, Health: center.Journal.Health, Problem: s.deliveries.problem,
		Deliveries: &api.Deliveries{Manager: s.deliveries.manager.Load, Problem: s.deliveries.problem},
		Pages:      func(center *api.Server) http.Handler { return pages.New(center, sessions, signIn, Version) }}
	if s.replica.node != nil {
		config.Deliveries.Forward = s.replica.forward
		config.Ready, config.RecordAlive = s.replica.ready, s.replica.words.RecordAlive
	}
	server := api.New(config)
	s.gate.open(server)
	client.Announce("eventcenter", center.Dir, s.address, center.Log)
	var upkeep sync.WaitGroup
	var failed error // why the center must be opened again
	upkeep.Go(func() {
		failed = center.Run(ctx)
		s.stop()
	})
	upkeep.Go(func() { clusters.run(ctx) })
	upkeep.Go(func() {
		s.replica.run(ctx, func(ctx context.Context, append appender) {
			var all sync.WaitGroup
			all.Go(func() { clusters.judge(ctx, center, append, s.alive) })
			all.Go(func() { center.Expire(ctx, append) })
			all.Go(func() { s.deliveries.run(ctx) })
			all.Go(func() { s.replica.answer(ctx, config.Deliveries.Answer) })
			all.Wait()
		})
	})
	err := <-s.served
	s.stop()
	upkeep.Wait()
	return errors.Join(err, failed)
}
