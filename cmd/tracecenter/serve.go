package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/alert"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/evidence"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/override"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/tenant"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
	"github.com/nodeagent/nodeagent/pkg/web"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	turn       = time.Second     // between judgements, each with a save
	tick       = time.Second / 4 // between signs that this process runs
	compare    = time.Minute     // between comparisons of the nodes
	reportTurn = time.Hour       // between looks for a week that is over
	assess     = 5 * time.Second // between judgements of the cluster's health
	saveLimit  = 30 * time.Second
	stopLimit  = 5 * time.Second
	headLimit  = 10 * time.Second
	idleLimit  = 2 * time.Minute
	headBytes  = 32 << 10 // of request headers: a token has at most 16 KiB

	maxConnections, networkConnections = 2_000, 500 // in total, and per network
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

func (s *serveOptions) valid() error {
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
	if err := s.valid(); err != nil {
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
	servers, err := client.Servers()
	if err != nil {
		return err
	}
	w := &work{serveOptions: s, follower: follower, kept: kept, prober: probe.New(servers, follower, log), log: log}
	w.api = &api.Server{Follower: follower, Store: kept, Prober: w.prober, Log: log, Now: time.Now, Loopback: s.endpoint.Loopback()}
	if s.center != "" {
		center := &remote.Client{Server: s.center, CA: s.centerCA, Token: s.centerToken}
		w.api.Sender = nodefault.NewSender(center, s.cluster, log)
		w.evidence = &evidence.Reader{Center: center, Cluster: s.cluster, Take: follower.Evidence, Log: log}
	}
	if s.alertmanager != "" {
		if err := w.readAlerts(); err != nil {
			return err
		}
	}
	if len(s.flowSchemas) > 0 {
		if w.tenants, err = tenant.New(s.flowSchemas, servers, w.prober, log); err != nil {
			return fmt.Errorf("--flow-schemas: %w", err)
		}
	}
	closer, err := w.people(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	return w.serve(ctx, client)
}

// work is the work of an open tracecenter.
type work struct {
	*serveOptions
	follower *follow.Follower
	kept     *store.Store
	prober   *probe.Prober
	api      *api.Server
	log      *slog.Logger
	alerts   *alert.Reader    // nil: there is no Alertmanager
	evidence *evidence.Reader // nil: there is no event center
	tenants  *tenant.Reader   // nil: there are no FlowSchemas
	ended    chan error       // of a part of the program
}

func (s *work) readAlerts() error {
	if err := alert.Valid(s.alertmanager); err != nil {
		return fmt.Errorf("--alertmanager %w", err)
	}
	levels, err := alert.ParseLevels(s.alertLevels)
	if err != nil {
		return fmt.Errorf("--alert-levels %w", err)
	}
	s.alerts = &alert.Reader{Address: s.alertmanager, Levels: levels, Log: s.log}
	s.api.Alerts = s.alerts.Firing
	return nil
}

// serve answers requests and judges until ctx ends or a part of the program has failed.
func (s *work) serve(ctx context.Context, client *watch.Client) error {
	listener, address, err := s.endpoint.Listen(maxConnections, networkConnections, nil)
	if err != nil {
		return err
	}
	answers := &http.Server{Handler: s.api.Handler(), ReadHeaderTimeout: headLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headBytes,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	if err := remote.Publish(s.directory(), address); err != nil {
		s.log.Error("write the address for other commands failed: they need --server", "err", err)
	}
	fmt.Fprintf(os.Stderr, "tracecenter: listening on %s; its token is in %s; \"tracecenter login\" opens the pages\n", address,
		plain(remote.TokenFile(s.directory())))
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	s.ended = make(chan error, 2)
	parts.Go(func() { s.ended <- answers.Serve(listener) })
	parts.Go(func() { s.ended <- client.Run(ctx, s.follower) })
	parts.Go(func() { s.prober.Run(ctx) })
	parts.Go(func() { s.keepWeeks(ctx) })
	parts.Go(func() { s.tick(ctx) })
	if s.alerts != nil {
		parts.Go(func() { s.alerts.Run(ctx) })
	}
	if s.tenants != nil {
		parts.Go(func() { s.tenants.Run(ctx) })
	}
	if s.api.Sender != nil {
		parts.Go(func() { s.api.Sender.Run(ctx) })
		parts.Go(func() { s.evidence.Run(ctx) })
	}
	err = s.judge(ctx)
	stop()
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	err = errors.Join(err, s.save(final, time.Now()))
	if closing := answers.Shutdown(final); closing != nil {
		err = errors.Join(err, answers.Close())
	}
	return err
}

// tick tells the follower that this process runs: a stopped one must not take its own delay for that of others.
func (s *work) tick(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.follower.Tick(time.Now())
		}
	}
}

// judge judges and saves each second, until ctx ends or a part of the program has failed. It retries failed saves.
func (s *work) judge(ctx context.Context) error {
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	failing, uncounted, day, assessed, compared := false, false, 0, time.Time{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.ended:
			if ctx.Err() != nil {
				err = nil // it was asked to stop
			}
			return err
		case now := <-ticker.C:
			err := s.save(ctx, now)
			if (err != nil) != failing && ctx.Err() == nil {
				failing = err != nil
				s.log.Warn("storing of verdicts changed", "failing", failing, "err", err)
			}
			if now.Sub(assessed) >= assess {
				s.api.Judge(ctx, now)
				assessed = now
				if err := s.kept.CountHour(ctx, now, s.follower.Builds()); (err != nil) != uncounted && ctx.Err() == nil {
					uncounted = err != nil
					s.log.Warn("adding up of the acts of hours changed", "failing", uncounted, "err", err)
				}
			}
			if now.Sub(compared) >= compare {
				if err := s.api.JudgeNodes(ctx, now); err != nil && ctx.Err() == nil {
					s.log.Warn("comparing the nodes failed", "err", err)
				}
				compared = now
			}
			if now.YearDay() != day {
				day = now.YearDay()
				if err := s.kept.Expire(ctx, now); err != nil {
					s.log.Warn("drop old days failed", "err", err)
				}
			}
		}
	}
}

// keepWeeks keeps the report of each week when it is over.
func (s *work) keepWeeks(ctx context.Context) {
	ticker := time.NewTicker(reportTurn)
	defer ticker.Stop()
	for {
		if err := s.api.KeepWeek(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.log.Warn("keep the report of the last week failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *work) save(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	leads, fresh, err := s.kept.Lead(ctx)
	if fresh && err == nil {
		var acts []follow.Act
		acts, _, err = s.kept.Load(ctx)
		s.follower.Adopt(acts, now)
	}
	probes, batch := s.prober.Take(), s.follower.Judge(now)
	if err == nil && !leads { // the writing replica stores its own probes
		if err = standBy(ctx, s.follower, s.kept, batch); err == nil {
			s.api.Saved(now)
		}
		return err
	}
	if err == nil {
		err = s.kept.Save(ctx, batch)
	}
	if err != nil {
		s.follower.Failed(batch)
		s.prober.Return(probes)
		return err
	}
	s.follower.Stored(batch)
	s.api.Saved(now)
	if err := s.kept.SaveProbes(ctx, probes); err != nil {
		s.prober.Return(probes)
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
