package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	turn      = time.Second     // between judgements, each with a save
	tick      = time.Second / 4 // between signs that this process runs
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
		s.repeat(tick, chore.Chore{Do: s.tick}),
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

// tick tells the follower that this process runs: a stopped one must not take its own delay for that of others. A
// ticker's time may be older than the present.
func (s *work) tick(context.Context, time.Time) error {
	s.api.Follower.Tick(time.Now())
	return nil
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
