package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite" // registers the driver

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
)

// peerRequest waits for its group to be durable.
type peerRequest struct {
	events []journal.Event
	done   chan error // size 1: the receiver may be gone
}

// grouped lets one goroutine write requests in groups, as our journals do.
func grouped(collect func(first *peerRequest, more <-chan *peerRequest) []*peerRequest,
	write func(context.Context, []*peerRequest) error, end func() error) store {
	requests, ended := make(chan *peerRequest, 1024), make(chan struct{})
	go func() {
		defer close(ended)
		for r := range requests {
			group := collect(r, requests)
			err := write(context.Background(), group)
			for _, r := range group {
				r.done <- err
			}
		}
	}()
	return store{func(ctx context.Context, events []journal.Event) error {
		r := &peerRequest{events, make(chan error, 1)}
		select {
		case requests <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-r.done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func() error { close(requests); <-ended; return end() }}
}

// openPlainSQLite is plain SQLite: the same table, inserts, synchronous mode and groups, and SQLite's own indexes for
// the two keys by which ours finds events. It has no checksums, no watermarks of streams, no mark of the newest offset,
// and no subscribers.
func openPlainSQLite(ctx context.Context, dir string) (store, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "plain.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return store{}, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, `CREATE TABLE events(
  offset INTEGER PRIMARY KEY, received INTEGER NOT NULL, dedup INTEGER NOT NULL, crc INTEGER NOT NULL,
  source TEXT NOT NULL, id TEXT NOT NULL, type TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL,
  severity TEXT NOT NULL, "check" TEXT NOT NULL, reason TEXT NOT NULL, stream TEXT NOT NULL,
  sequence INTEGER NOT NULL, event BLOB NOT NULL);
CREATE INDEX events_dedup ON events(dedup); CREATE INDEX events_node ON events(node)`); err != nil {
		return store{}, errors.Join(err, db.Close())
	}
	collect := func(first *peerRequest, more <-chan *peerRequest) []*peerRequest {
		group, n := []*peerRequest{first}, len(first.events)
		for n < 5000 && len(more) > 0 {
			r := <-more
			group, n = append(group, r), n+len(r.events)
		}
		return group
	}
	return grouped(collect, func(ctx context.Context, group []*peerRequest) error { return insert(ctx, db, group) },
		db.Close), nil
}

func insert(ctx context.Context, db *sql.DB, group []*peerRequest) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after Commit
	statement, err := tx.PrepareContext(ctx, `INSERT INTO events(received, dedup, crc, source, id, type, cluster, node,
		severity, "check", reason, stream, sequence, event) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
	if err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	for _, r := range group {
		for _, e := range r.events {
			sum := sha256.Sum256([]byte(e.Source + "\x00" + e.ID)) // as random as ours
			if _, err := statement.ExecContext(ctx, now, int64(binary.BigEndian.Uint64(sum[:8])), 0, e.Source, e.ID, e.Type,
				e.Cluster, e.Node, e.Severity, e.Check, e.Reason, e.Stream, int64(e.Sequence), e.JSON); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// servers are NATS servers in this process, with the center's own settings.
type servers []*cluster.Node

func startNATS(dir string, replicas int, log *slog.Logger) (servers, error) {
	var addresses []string
	for range replicas {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, l.Addr().String())
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	started := make(servers, replicas)
	failed := make(chan error, replicas)
	for i := range started {
		c := cluster.Config{Name: fmt.Sprint("replica-", i), Dir: filepath.Join(dir, fmt.Sprint("nats-", i)), Log: log,
			User: "bench", Secret: "what the replicas show"}
		for j, address := range addresses {
			switch {
			case replicas == 1:
			case i == j:
				c.Listen = address
			default:
				c.Routes = append(c.Routes, address)
			}
		}
		go func() {
			var err error
			started[i], err = cluster.Start(c)
			failed <- err
		}()
	}
	var errs []error
	for range started {
		errs = append(errs, <-failed)
	}
	return started, errors.Join(errs...)
}

func (s servers) close() error {
	for _, n := range s {
		n.Close()
	}
	return nil
}

// plain is a plain NATS stream, with the center's settings (including SyncAlways) and groups. It reads no messages
// back, and looks for no duplicates.
func (s servers) plain(ctx context.Context) (store, error) {
	js, err := natsjs.New(s[0].Conn, natsjs.WithDefaultTimeout(5*time.Second))
	if err != nil {
		return store{}, err
	}
	config := jetstream.Config(len(s), "00000000-0000-4000-8000-000000000000")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(250 * time.Millisecond) {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err = js.CreateStream(limited, config)
		cancel()
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return store{}, errors.Join(err, s.close())
	}
	collect := func(first *peerRequest, more <-chan *peerRequest) []*peerRequest {
		group, size := []*peerRequest{first}, size(first.events)
		full := time.NewTimer(5 * time.Millisecond)
		defer full.Stop()
		for size < 256<<10 {
			select {
			case r, ok := <-more:
				if !ok {
					return group
				}
				group, size = append(group, r), size+len(r.events[0].JSON)*len(r.events)
			case <-full.C:
				return group
			}
		}
		return group
	}
	return grouped(collect, func(ctx context.Context, group []*peerRequest) error {
		var message bytes.Buffer
		for _, r := range group {
			for _, e := range r.events {
				message.Write(e.JSON)
				message.WriteByte('\n')
			}
		}
		_, err := js.Publish(ctx, config.Subjects[0], message.Bytes())
		return err
	}, s.close), nil
}

func size(events []journal.Event) (n int) {
	for _, e := range events {
		n += len(e.JSON)
	}
	return n
}
