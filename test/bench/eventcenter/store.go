package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

// The journals and the stores below them, each in a process of its own.
const (
	storeVerb = "store"

	ourSQLite  = "ours, SQLite"
	ourStream1 = "ours, JetStream, one replica" // a configuration that the center does not offer
	ourStream3 = "ours, JetStream, three"
	onlySQLite = "SQLite alone"
	onlyNATS1  = "NATS alone, one"
	onlyNATS3  = "NATS alone, three"
)

func stores() []string {
	return []string{ourSQLite, onlySQLite, ourStream1, onlyNATS1, ourStream3, onlyNATS3}
}

// store stores events durably.
type store struct {
	append func(ctx context.Context, events []journal.Event) error
	close  func() error
}

func openStore(ctx context.Context, kind, dir string) (store, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	switch kind {
	case ourSQLite:
		s, err := sqlite.Open(ctx, sqlite.Options{Dir: dir, Log: log})
		if err != nil {
			return store{}, err
		}
		return store{appendTo(s), s.Close}, nil
	case onlySQLite:
		return openPlainSQLite(ctx, dir)
	}
	replicas := 3
	if kind == ourStream1 || kind == onlyNATS1 {
		replicas = 1
	}
	n, err := startNATS(dir, replicas, log)
	if err != nil {
		return store{}, err
	}
	if kind == onlyNATS1 || kind == onlyNATS3 {
		return n.plain(ctx)
	}
	s, err := jetstream.Open(ctx, jetstream.Options{Dir: dir + "/journal", Conn: n[0].Conn, Replicas: replicas, Log: log},
		func(error) {})
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		return store{}, errors.Join(err, n.close())
	}
	return store{appendTo(s), func() error { return errors.Join(s.Close(), n.close()) }}, nil
}

type appender interface {
	Append(ctx context.Context, events []journal.Event) (journal.Appended, error)
}

func appendTo(s appender) func(context.Context, []journal.Event) error {
	return func(ctx context.Context, events []journal.Event) error {
		done, err := s.Append(ctx, events)
		if err == nil && done.New != len(events) {
			err = fmt.Errorf("%d of %d are new", done.New, len(events))
		}
		return err
	}
}

// storeFigures are the measurements of a store.
type storeFigures struct {
	PerSecond   float64 // events, 64 senders with batches of 50
	OnePerOne   float64 // 64 senders with one event each
	P50, P99    time.Duration
	Unfinished  int // at 5,000 a second: events not stored by the end of the run
	BytesOnDisk int64
}

const senders = 64

// runStore measures one store and prints the figures.
func runStore(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet(storeVerb, flag.ContinueOnError)
	kind, dir := flags.String("kind", "", ""), flags.String("dir", "", "")
	span := flags.Duration("for", 5*time.Second, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := openStore(ctx, *kind, *dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	l := &storeLoad{store: s, sequences: make([]uint64, 10_000)}
	var f storeFigures
	if _, err = l.saturate(ctx, 50, time.Second); err != nil { // warm-up: one-time costs
		return err
	}
	if f.PerSecond, err = l.saturate(ctx, 50, *span); err != nil {
		return err
	}
	if f.OnePerOne, err = l.saturate(ctx, 1, *span); err != nil {
		return err
	}
	if err := l.steady(ctx, 5000, *span, &f); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

type storeLoad struct {
	store
	mu        sync.Mutex // guards the fields below
	sequences []uint64   // of each node
	at        int        // the next node
}

// next returns a batch of one node.
func (l *storeLoad) next(size int) ([]journal.Event, error) {
	l.mu.Lock()
	node := l.at % len(l.sequences)
	l.at++
	first := l.sequences[node] + 1
	l.sequences[node] += uint64(size)
	l.mu.Unlock()
	events := make([]journal.Event, size)
	for i := range events {
		var err error
		if events[i], err = changed(node, first+uint64(i), (first+uint64(i))%2 == 1, time.Now()); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// saturate returns the stored events per second with senders that send again after each response. Their batches are
// prepared before.
func (l *storeLoad) saturate(ctx context.Context, size int, span time.Duration) (float64, error) {
	made := make([][][]journal.Event, senders)
	for i := range made {
		for range 1 + int(2000*span.Seconds())/senders {
			batch, err := l.next(size)
			if err != nil {
				return 0, err
			}
			made[i] = append(made[i], batch)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var taken atomic.Int64
	begun := time.Now()
	var all sync.WaitGroup
	for _, batches := range made {
		all.Go(func() {
			for len(batches) > 0 && time.Since(begun) < span {
				if err := l.append(ctx, batches[0]); err != nil {
					cancel(err)
					return
				}
				taken.Add(int64(len(batches[0])))
				batches = batches[1:]
			}
		})
	}
	all.Wait()
	return float64(taken.Load()) / time.Since(begun).Seconds(), context.Cause(ctx)
}

// steady sends single events at a rate, whether or not earlier ones were answered.
func (l *storeLoad) steady(ctx context.Context, rate int, span time.Duration, f *storeFigures) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([]time.Duration, int(float64(rate)*span.Seconds()))
	var unfinished atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for i := range times {
		due := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		batch, err := l.next(1)
		if err != nil {
			return err
		}
		unfinished.Add(1)
		all.Go(func() {
			if err := l.append(ctx, batch); err != nil {
				cancel(err)
			}
			times[i] = time.Since(due)
			unfinished.Add(-1)
		})
	}
	f.Unfinished = int(unfinished.Load())
	all.Wait()
	slices.Sort(times)
	f.P50, f.P99 = times[len(times)/2], times[len(times)*99/100]
	return context.Cause(ctx)
}
