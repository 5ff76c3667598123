package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nodeagent/nodeagent/internal/kube/fleet"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/override"
	"github.com/nodeagent/nodeagent/pkg/trace/pages"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
	"github.com/nodeagent/nodeagent/pkg/web"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
	"github.com/nodeagent/nodeagent/pkg/web/oidc"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

type serveOptions struct {
	*command.Asker
	kubeconfig, oidc, overrides, store, cluster, alertLevels string

	endpoint    web.Endpoint
	config      follow.Config
	keepDays    int
	center      remote.Client // of the event center
	alerts      probe.Alerts
	flowSchemas []string

	api     *api.Server
	readers []func(context.Context) // each runs until its context ends
}

func newServe(o *command.Asker) *cobra.Command {
	s := &serveOptions{Asker: o}
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
	command.Listen(flags, &s.endpoint, defaultListen)
	flags.StringVar(&s.oidc, "oidc", "", "file with the identity provider at which people sign in; see docs/trace.md")
	flags.StringVar(&s.store, "store", "", "PostgreSQL for the verdicts, postgres://..., instead of files in --dir")
	flags.StringVar(&s.center.Server, "event-center", "", "address of the event center that gets the faults of nodes; see docs/trace.md")
	flags.StringVar(&s.center.CA, "event-center-ca", "", "file with the CA certificates of the event center (default: the system's)")
	flags.StringVar(&s.center.Token, "event-center-token-file", "", "file with a token that the event center accepts")
	flags.StringVar(&s.cluster, "cluster", "", "name of this cluster in the event center")
	flags.StringVar(&s.alerts.Address, "alertmanager", "", "address of the Alertmanager whose firing alerts count for the cluster's health")
	flags.StringVar(&s.alertLevels, "alert-levels", "critical=Fatal,warning=Warning", "level of health for each value of the alerts' label severity")
	flags.StringSliceVar(&s.flowSchemas, "flow-schemas", nil, "FlowSchemas of tenants whose throttled requests are counted")
	flags.DurationVar(&s.config.Promised, "promised", time.Minute, "time within which a pod must be delivered")
	flags.IntVar(&s.keepDays, "keep-days", 30, "how many days to keep verdicts")
	flags.StringSliceVar(&s.config.ExcludeNamespaces, "exclude-namespaces", nil, "namespaces whose pods are excluded, and counted as excluded")
	flags.StringVar(&s.config.PoolLabel, "pool-label", "", "label of a Node whose value is its pool: versions are compared within a pool")
	flags.StringVar(&s.overrides, "overrides", "", "file with the classes of reasons that differ in this cluster")
	return cmd
}

// Validate returns the error in the flags.
func (s *serveOptions) Validate() error {
	if err := s.endpoint.Validate(); err != nil {
		return err
	}
	switch {
	case s.config.Promised < time.Second || s.config.Promised > time.Hour:
		return fmt.Errorf("--promised %s: must be between 1s and 1h", s.config.Promised)
	case s.center.Server != "" && (s.cluster == "" || s.center.Token == ""):
		return errors.New("--event-center needs --cluster and --event-center-token-file")
	case s.store != "" && !store.IsPostgres(s.store):
		return errors.New("--store: must begin with postgres://")
	case s.keepDays < 8:
		return fmt.Errorf("--keep-days %d: must be at least 8, because one indicator covers 7 days", s.keepDays)
	}
	return nil
}

func (s *serveOptions) run(ctx context.Context) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := s.readOverrides(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	open, where := store.Open, s.Dir
	if s.store != "" {
		open, where = store.OpenPostgres, s.store
	}
	kept, err := open(ctx, where, s.keepDays)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	if s.config.Open, s.config.Since, err = kept.Load(ctx); err != nil {
		return err
	}
	s.config.Judged = func(k follow.Key) bool { return kept.Judged(ctx, k) }
	follower := follow.New(s.config)
	client, err := watch.New(s.kubeconfig, "tracecenter/"+Version, log)
	if err != nil {
		return err
	}
	prober := probe.New(client, follower, log)
	s.api = &api.Server{Follower: follower, Store: kept, Prober: prober, Log: log, Now: time.Now, Loopback: s.endpoint.Loopback()}
	s.readers = append(s.readers, prober.Run)
	if s.center.Server != "" {
		s.api.Sender = messages.NewSender(&s.center, s.cluster, log)
		reader := &messages.Reader{Center: &s.center, Cluster: s.cluster, Take: follower.Evidence}
		s.readers = append(s.readers, s.repeat(time.Second, chore.Chore{Name: "report to the event center", Do: s.api.Sender.Send}),
			s.repeat(2*time.Second, chore.Chore{Name: "read evidence from the event center", Do: reader.Read}))
	}
	if s.alerts.Address != "" {
		if err := s.readAlerts(); err != nil {
			return err
		}
	}
	if len(s.flowSchemas) > 0 {
		tenants, err := probe.NewTenants(s.flowSchemas, prober)
		if err != nil {
			return fmt.Errorf("--flow-schemas: %w", err)
		}
		s.readers = append(s.readers, s.repeat(time.Minute, chore.Chore{Name: "read the apiservers' metrics", Do: tenants.Round}))
	}
	closer, err := s.people(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	return s.serve(ctx, client)
}

func (s *serveOptions) readOverrides() error {
	if s.overrides == "" {
		return nil
	}
	data, err := os.ReadFile(s.overrides)
	if err == nil {
		s.config.Classes, err = override.Parse(s.overrides, data)
	}
	if err != nil {
		return fmt.Errorf("--overrides: %w", err)
	}
	return nil
}

func (s *serveOptions) readAlerts() error {
	if err := probe.ValidAddress(s.alerts.Address); err != nil {
		return fmt.Errorf("--alertmanager %w", err)
	}
	levels, err := probe.ParseLevels(s.alertLevels)
	if err != nil {
		return fmt.Errorf("--alert-levels %w", err)
	}
	s.alerts.Levels, s.api.Alerts = levels, s.alerts.Firing
	s.readers = append(s.readers, s.repeat(15*time.Second, chore.Chore{Name: "read the alerts", Do: s.alerts.Read}))
	return nil
}

const (
	turn      = time.Second     // between judgements, each with a save
	tick      = time.Second / 4 // between signs that this process runs: a stopped one must not take its own delay for that of others
	overlap   = time.Minute     // another replica may judge an act so much later than this one
	saveLimit = 30 * time.Second
	stopLimit = 5 * time.Second

	maxConnections, networkConnections = 2_000, 500 // in total, and per network
)

// serve answers requests and judges until ctx ends or a part of the program has failed.
func (s *serveOptions) serve(ctx context.Context, client *watch.Client) error {
	listener, address, err := s.endpoint.Listen(maxConnections, networkConnections, nil)
	if err != nil {
		return err
	}
	remote.Announce("tracecenter", s.Dir, address, s.api.Log)
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return web.Serve(ctx, listener, s.api.Handler(), stopLimit, s.api.Log) })
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
		return s.save(final, time.Now())
	})
	return parts.Wait()
}

func (s *serveOptions) repeat(turn time.Duration, chores ...chore.Chore) func(context.Context) {
	return func(ctx context.Context) { chore.Repeat(ctx, s.api.Log, turn, chores...) }
}

// chores are those that write to the store: they follow each other, because the store has one writer.
func (s *serveOptions) chores() []chore.Chore {
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
func (s *serveOptions) save(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	leads, fresh, err := s.api.Store.Lead(ctx)
	if fresh && err == nil {
		var acts []follow.Act
		acts, _, err = s.api.Store.Load(ctx)
		s.api.Follower.Adopt(acts, now)
	}
	probes, batch := s.api.Prober.Take(), s.api.Follower.Judge(now)
	var alive time.Time
	switch {
	case err != nil:
	case leads:
		err = s.api.Store.Save(ctx, batch)
	default:
		err = s.api.Store.Note(ctx, store.Alive, &alive)
	}
	if err != nil {
		s.api.Follower.Failed(batch)
		s.api.Prober.Return(probes)
		return err
	}
	s.api.Saved(now)
	if !leads { // the writing replica stores its own probes, and its verdicts later than this one
		s.api.Follower.Elsewhere(batch, alive.Add(-overlap))
		return nil
	}
	s.api.Follower.Stored(batch)
	if err := s.api.Store.SaveProbes(ctx, probes); err != nil {
		s.api.Prober.Return(probes)
		return err
	}
	return nil
}

// clusterName stands for the cluster in identities: there is only one.
const clusterName = "cluster"

// people adds the access of people and programs to the interface, and the pages. The returned store must be closed.
func (s *serveOptions) people(ctx context.Context) (io.Closer, error) {
	token, err := web.Token(remote.TokenFile(s.Dir))
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	if s.kubeconfig != "" {
		if err := secretfile.Check(s.kubeconfig); err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	reviewer, err := fleet.New(fleet.Config{Kubeconfig: s.kubeconfig, UserAgent: "tracecenter/" + Version, Log: s.api.Log})
	if err != nil {
		return nil, err
	}
	authority, err := identity.New(identity.Config{Program: "tracecenter", Local: token, Dir: s.Dir, Log: s.api.Log,
		Vouchers: []identity.Voucher{{Cluster: identity.Cluster{Name: clusterName, Readers: true}, Apiserver: reviewer, Node: reviewer.UID}}})
	if err != nil {
		return nil, err
	}
	provider, err := oidc.Open("tracecenter", s.oidc)
	if err != nil {
		return nil, fmt.Errorf("--oidc: %w", err)
	}
	control, err := sqlite.Open(ctx, filepath.Join(s.Dir, "control.db"))
	if err != nil {
		return nil, err
	}
	sessions := web.NewSessions(control, "tracecenter", s.endpoint.Secured(), time.Now)
	authenticate, signIn := provider.Beside(authority.Authenticate)
	s.api.Access, s.api.Authenticate, s.api.SignIn = authority, sessions.Authenticate(authenticate), sessions.Invite
	s.api.Pages = pages.New(s.api, sessions, signIn, Version)
	return control, nil
}
