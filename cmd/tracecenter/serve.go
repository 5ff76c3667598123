package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/override"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
	"github.com/nodeagent/nodeagent/pkg/web"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

type serveOptions struct {
	*options
	kubeconfig       string
	endpoint         web.Endpoint
	oidc             string
	promised         time.Duration
	keepDays         int
	exclude          []string
	overrides, store string

	center, centerCA, centerToken, cluster string

	alertmanager, alertLevels string

	flowSchemas []string
	poolLabel   string
}

func newServe(o *options) *cobra.Command {
	s := &serveOptions{options: o}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Follow the cluster",
		Long: `Follow the cluster: with a kubeconfig, or in a pod with its ServiceAccount. It needs no other flags: it listens on
loopback, and at the first start creates its token in the file "token" of its directory. It listens on another address only
with TLS.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "file with endpoint and credentials (default: the pod's ServiceAccount)")
	flags.StringVar(&s.endpoint.Address, "listen", defaultListen, "address to listen on")
	flags.StringVar(&s.endpoint.CertFile, "tls-cert", "", "file with the certificate; read again when it changes")
	flags.StringVar(&s.endpoint.KeyFile, "tls-key", "", "file with its key")
	flags.StringVar(&s.oidc, "oidc", "", "file with the identity provider at which people sign in; see docs/trace.md")
	flags.StringVar(&s.store, "store", "", "PostgreSQL for the verdicts, postgres://..., instead of files in --dir")
	flags.StringVar(&s.center, "event-center", "", "address of the event center that gets the faults of nodes; see docs/trace.md")
	flags.StringVar(&s.centerCA, "event-center-ca", "", "file with the CA certificates of the event center (default: the system's)")
	flags.StringVar(&s.centerToken, "event-center-token-file", "", "file with a token that the event center accepts")
	flags.StringVar(&s.cluster, "cluster", "", "name of this cluster in the event center")
	flags.StringVar(&s.alertmanager, "alertmanager", "", "address of the Alertmanager whose firing alerts count for the cluster's health")
	flags.StringVar(&s.alertLevels, "alert-levels", "critical=Fatal,warning=Warning", "level of health for each value of the alerts' label severity")
	flags.StringSliceVar(&s.flowSchemas, "flow-schemas", nil, "FlowSchemas of tenants whose throttled requests are counted")
	flags.DurationVar(&s.promised, "promised", time.Minute, "time within which a pod must be delivered")
	flags.IntVar(&s.keepDays, "keep-days", 30, "how many days to keep verdicts")
	flags.StringSliceVar(&s.exclude, "exclude-namespaces", nil, "namespaces whose pods are excluded, and counted as excluded")
	flags.StringVar(&s.poolLabel, "pool-label", "", "label of a Node whose value is its pool: versions are compared within a pool")
	flags.StringVar(&s.overrides, "overrides", "", "file with the classes of reasons that differ in this cluster")
	return cmd
}

// Validate returns the error in the flags.
func (s *serveOptions) Validate() error {
	if err := s.endpoint.Validate(); err != nil {
		return err
	}
	switch {
	case s.promised < time.Second || s.promised > time.Hour:
		return fmt.Errorf("--promised %s: must be between 1s and 1h", s.promised)
	case s.center != "" && (s.cluster == "" || s.centerToken == ""):
		return errors.New("--event-center needs --cluster and --event-center-token-file")
	case s.store != "" && !store.IsPostgres(s.store):
		return errors.New("--store: must begin with postgres://")
	case s.keepDays < 8:
		return fmt.Errorf("--keep-days %d: must be at least 8, because one indicator covers 7 days", s.keepDays)
	}
	return nil
}

// classes reads the file of overrides; without one, there are none.
func (s *serveOptions) classes() (reason.Overrides, error) {
	if s.overrides == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.overrides)
	if err != nil {
		return nil, fmt.Errorf("--overrides: %w", err)
	}
	return override.Parse(s.overrides, data)
}

func (s *serveOptions) openStore(ctx context.Context) (*store.Store, error) {
	if s.store != "" {
		return store.OpenPostgres(ctx, s.store, s.keepDays)
	}
	return store.Open(ctx, s.directory(), s.keepDays)
}

func (s *serveOptions) run(ctx context.Context) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	classes, err := s.classes()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := os.MkdirAll(s.directory(), 0o700); err != nil {
		return err
	}
	kept, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	open, since, err := kept.Load(ctx)
	if err != nil {
		return err
	}
	follower := follow.New(follow.Config{Promised: s.promised, ExcludeNamespaces: s.exclude, PoolLabel: s.poolLabel, Classes: classes, Since: since, Open: open,
		Judged: func(k follow.Key) bool { return kept.Judged(ctx, k) }})
	client, err := watch.New(s.kubeconfig, "tracecenter/"+Version, log)
	if err != nil {
		return err
	}
	prober := probe.New(client, follower, log)
	w := &work{serveOptions: s, readers: []func(context.Context){prober.Run}, api: &api.Server{Follower: follower, Store: kept, Prober: prober, Log: log,
		Now: time.Now, Loopback: s.endpoint.Loopback()}}
	if s.center != "" {
		center := &remote.Client{Server: s.center, CA: s.centerCA, Token: s.centerToken}
		w.api.Sender = messages.NewSender(center, s.cluster, log)
		reader := &messages.Reader{Center: center, Cluster: s.cluster, Take: follower.Evidence, Log: log}
		w.readers = append(w.readers, w.api.Sender.Run, reader.Run)
	}
	if s.alertmanager != "" {
		if err := w.readAlerts(); err != nil {
			return err
		}
	}
	if len(s.flowSchemas) > 0 {
		tenants, err := probe.NewTenants(s.flowSchemas, prober)
		if err != nil {
			return fmt.Errorf("--flow-schemas: %w", err)
		}
		w.readers = append(w.readers, tenants.Run)
	}
	closer, err := w.people(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	return w.serve(ctx, client)
}

func (s *work) readAlerts() error {
	if err := probe.ValidAddress(s.alertmanager); err != nil {
		return fmt.Errorf("--alertmanager %w", err)
	}
	levels, err := probe.ParseLevels(s.alertLevels)
	if err != nil {
		return fmt.Errorf("--alert-levels %w", err)
	}
	alerts := &probe.Alerts{Address: s.alertmanager, Levels: levels, Log: s.api.Log}
	s.api.Alerts = alerts.Firing
	s.readers = append(s.readers, alerts.Run)
	return nil
}

const (
	turn      = time.Second     // between judgements, each with a save
	tick      = time.Second / 4 // between signs that this process runs: a stopped one must not take its own delay for that of others
	saveLimit = 30 * time.Second
	stopLimit = 5 * time.Second
	headLimit = 10 * time.Second
	idleLimit = 2 * time.Minute
	headBytes = 32 << 10 // of request headers: a token has at most 16 KiB

	maxConnections, networkConnections = 2_000, 500 // in total, and per network
)

// work is the work of an open tracecenter.
type work struct {
	*serveOptions
	api     *api.Server
	readers []func(context.Context) // each runs until its context ends
}

// serve answers requests and judges until ctx ends or a part of the program has failed.
func (s *work) serve(ctx context.Context, client *watch.Client) error {
	listener, address, err := s.endpoint.Listen(maxConnections, networkConnections, nil)
	if err != nil {
		return err
	}
	answers := &http.Server{Handler: s.api.Handler(), ReadHeaderTimeout: headLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headBytes,
		ErrorLog: slog.NewLogLogger(s.api.Log.Handler(), slog.LevelDebug)}
	if err := remote.Publish(s.directory(), address); err != nil {
		s.api.Log.Error("write the address for other commands failed: they need --server", "err", err)
	}
	fmt.Fprintf(os.Stderr, "tracecenter: listening on %s; its token is in %s; \"tracecenter login\" opens the pages\n", address,
		plain(remote.TokenFile(s.directory())))
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error {
		if err := answers.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	parts.Go(func() error { return client.Run(ctx, s.api.Follower) })
	for _, run := range append(s.readers,
		s.repeat(tick, chore.Chore{Do: func(context.Context, time.Time) error {
			s.api.Follower.Tick(time.Now()) // a ticker's time may be older than the present
			return nil
		}}),
		s.repeat(time.Hour, chore.Chore{Name: "keep the report of the last week", Do: s.api.KeepWeek})) {
		parts.Go(func() error {
			run(ctx)
			return nil
		})
	}
	parts.Go(func() error {
		select { // before the first lists, the health would be unknown
		case <-ctx.Done():
		case <-time.After(turn):
			s.repeat(turn, s.chores()...)(ctx)
		}
		final, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		err := s.save(final, time.Now())
		if closing := answers.Shutdown(final); closing != nil {
			err = errors.Join(err, answers.Close())
		}
		return err
	})
	return parts.Wait()
}

func (s *work) repeat(turn time.Duration, chores ...chore.Chore) func(context.Context) {
	return func(ctx context.Context) { chore.Repeat(ctx, s.api.Log, turn, chores...) }
}

// chores are those that write to the store: they follow each other, because the store has one writer.
func (s *work) chores() []chore.Chore {
	return []chore.Chore{
		{Name: "store verdicts", Do: s.save},
		{Name: "judge the health", Every: 5 * time.Second, Do: s.api.Judge},
		{Name: "add up the acts of an hour", Every: 5 * time.Second, Do: func(ctx context.Context, now time.Time) error {
			return s.api.Store.CountHour(ctx, now, s.api.Follower.Builds())
		}},
		{Name: "compare the nodes", Every: time.Minute, Do: s.api.JudgeNodes},
		{Name: "announce to the event center", Every: 5 * time.Second, Do: s.api.Announce},
		{Name: "drop old days", Every: time.Hour, Do: s.api.Store.Expire},
	}
}

// save stores the new verdicts, and those whose storing failed before.
func (s *work) save(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	leads, fresh, err := s.api.Store.Lead(ctx)
	if fresh && err == nil {
		var acts []follow.Act
		acts, _, err = s.api.Store.Load(ctx)
		s.api.Follower.Adopt(acts, now)
	}
	probes, batch := s.api.Prober.Take(), s.api.Follower.Judge(now)
	if err == nil && !leads { // the writing replica stores its own probes
		if err = standBy(ctx, s.api.Follower, s.api.Store, batch); err == nil {
			s.api.Saved(now)
		}
		return err
	}
	if err == nil {
		err = s.api.Store.Save(ctx, batch)
	}
	if err != nil {
		s.api.Follower.Failed(batch)
		s.api.Prober.Return(probes)
		return err
	}
	s.api.Follower.Stored(batch)
	s.api.Saved(now)
	if err := s.api.Store.SaveProbes(ctx, probes); err != nil {
		s.api.Prober.Return(probes)
		return err
	}
	return nil
}

// overlap is how much later than the writing replica this one may judge an act.
const overlap = time.Minute

// standBy keeps the verdicts that the writing replica may not have stored yet.
func standBy(ctx context.Context, f *follow.Follower, kept *store.Store, b follow.Batch) error {
	alive, err := kept.Alive(ctx)
	if err != nil {
		f.Failed(b)
		return err
	}
	f.Elsewhere(b, alive.Add(-overlap))
	return nil
}
