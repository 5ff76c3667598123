package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/override"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
)

const (
	turn      = time.Second // between judgements, each with a save
	saveLimit = 30 * time.Second
	stopLimit = 5 * time.Second
	headLimit = 10 * time.Second
)

type serveOptions struct {
	kubeconfig, dir, listen string
	promised                time.Duration
	keepDays                int
	exclude                 []string
	overrides, store        string
}

func newServe() *cobra.Command {
	s := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Follow the cluster",
		Long: `Follow the cluster: with a kubeconfig, or in a pod with its ServiceAccount. It listens on loopback only, because its
answers name pods of all namespaces.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "file with endpoint and credentials (default: the pod's ServiceAccount)")
	flags.StringVar(&s.dir, "dir", "tracecenter-data", "directory of the verdicts")
	flags.StringVar(&s.store, "store", "", "PostgreSQL for the verdicts, postgres://..., instead of files in --dir")
	flags.StringVar(&s.listen, "listen", defaultListen, "loopback address to listen on")
	flags.DurationVar(&s.promised, "promised", time.Minute, "time within which a pod must be delivered")
	flags.IntVar(&s.keepDays, "keep-days", 30, "how many days to keep verdicts")
	flags.StringSliceVar(&s.exclude, "exclude-namespaces", nil, "namespaces whose pods are excluded, and counted as excluded")
	flags.StringVar(&s.overrides, "overrides", "", "file with the classes of reasons that differ in this cluster")
	return cmd
}

func (s *serveOptions) valid() error {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: %w", s.listen, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen %s: must be an address of loopback", s.listen)
	}
	if s.promised < time.Second || s.promised > time.Hour {
		return fmt.Errorf("--promised %s: must be between 1s and 1h", s.promised)
	}
	if s.store != "" && !store.IsPostgres(s.store) {
		return errors.New("--store: must begin with postgres://")
	}
	if s.keepDays < 8 {
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
	return store.Open(ctx, s.dir, s.keepDays)
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
	kept, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	open, since, err := kept.Load(ctx)
	if err != nil {
		return err
	}
	follower := follow.New(follow.Config{Promised: s.promised, ExcludeNamespaces: s.exclude, Classes: classes, Since: since, Open: open,
		Judged: func(k follow.Key) bool { return kept.Judged(ctx, k) }})
	client, err := watch.New(s.kubeconfig, "tracecenter/"+Version, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	server := &api.Server{Follower: follower, Store: kept, Log: log, Now: time.Now}
	answers := &http.Server{Handler: server.Handler(), ReadHeaderTimeout: headLimit,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	log.Info("listening", "address", listener.Addr().String(), "open", len(open))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- answers.Serve(listener) }()
	go func() { ended <- client.Run(ctx, follower) }()
	err = judge(ctx, follower, kept, server, ended, log)
	stop()
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	err = errors.Join(err, save(final, follower, kept, server, time.Now()))
	return errors.Join(err, answers.Shutdown(final))
}

// judge judges and saves each second, until ctx ends or a part of the program has failed. It retries failed saves.
func judge(ctx context.Context, f *follow.Follower, kept *store.Store, server *api.Server, ended <-chan error, log *slog.Logger) error {
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	failing, day := false, 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if ctx.Err() != nil {
				err = nil // it was asked to stop
			}
			return err
		case now := <-ticker.C:
			err := save(ctx, f, kept, server, now)
			if (err != nil) != failing && ctx.Err() == nil {
				failing = err != nil
				log.Warn("storing of verdicts changed", "failing", failing, "err", err)
			}
			if now.YearDay() != day {
				day = now.YearDay()
				if err := kept.Expire(ctx, now); err != nil {
					log.Warn("drop old days failed", "err", err)
				}
			}
		}
	}
}

func save(ctx context.Context, f *follow.Follower, kept *store.Store, server *api.Server, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	leads, fresh, err := kept.Lead(ctx)
	var acts []follow.Act
	if fresh && err == nil {
		acts, _, err = kept.Load(ctx)
		f.Adopt(acts, now)
	}
	batch := f.Judge(now)
	if err == nil && !leads {
		err = standBy(ctx, f, kept, batch)
		if err == nil {
			server.Saved(now)
		}
		return err
	}
	if err != nil {
		f.Failed(batch)
		return err
	}
	if err := kept.Save(ctx, batch); err != nil {
		f.Failed(batch)
		return err
	}
	f.Stored(batch)
	server.Saved(now)
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
