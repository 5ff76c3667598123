package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
)

// replicas measures three centers with JetStream in them, without a history, and all nodes spread over them.
func (b *bench) replicas(ctx context.Context) error {
	for _, delay := range []time.Duration{0, b.delay} {
		if err := b.three(ctx, delay); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) three(ctx context.Context, delay time.Duration) error {
	dir, err := os.MkdirTemp(b.dir, "three-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := replicaFiles(dir, b.tls)
	if err != nil {
		return err
	}
	begun := time.Now()
	var all []*center
	for i, file := range files {
		c, err := b.startCenter(b.binary, filepath.Join(dir, fmt.Sprint("replica-", i)), delay, "--replicas", file)
		if err != nil {
			return err
		}
		defer func() { _ = c.stop(syscall.SIGKILL) }()
		all = append(all, c)
	}
	for _, c := range all {
		if _, err := c.ready(ctx); err != nil {
			return err
		}
	}
	on := ", three replicas, " + disk(delay)
	b.row("first start"+on, "", "%s", short(time.Since(begun)))
	f := startFleet(ctx, b.nodes, func(i int) eventcenter.Settings {
		// Here each replica has a token of its own; in a cluster an agent's token is valid for all of them.
		return all[i%3].settings(all[i%3].url + "/v1/events")
	})
	defer f.end()
	if _, err := f.drained(ctx, 5*time.Minute); err != nil {
		return err
	}
	b.row(fmt.Sprintf("%d agents come at once%s: all are heard after", b.nodes, on), "", "%s", short(time.Since(begun)))
	for _, l := range []struct {
		what       string
		rate, many int
	}{{"5,000 events/s, one at a time", 5000, 1}, {"5,000 events/s, ten at a time", 5000, 10}} {
		got, err := f.load(ctx, l.rate, l.many, b.steady/2)
		if err != nil {
			b.row(l.what+on, "p99 100 ms", "cannot: %v", err)
			break
		}
		b.row(l.what+on+", ingest p50 / p99", "p99 100 ms", "%s; %.0f/s, %d waited at the end, for %s; %s", got.figure,
			got.perSecond, got.left, short(got.drain), f.why())
	}
	for i, c := range all {
		u, err := c.usage()
		if err != nil {
			return err
		}
		b.row(fmt.Sprintf("resident memory of replica %d%s", i, on), "300 MiB", "%.0f MiB (peak %.0f)", u.resident, u.peak)
	}
	return nil
}

// replicaFiles writes the settings of three replicas on loopback.
func replicaFiles(dir string, t *certificate) (files []string, err error) {
	var addresses [3]string
	for i := range addresses {
		if addresses[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("what the replicas show\n"), 0o600); err != nil {
		return nil, err
	}
	for i, listen := range addresses {
		text := fmt.Sprintf("journal: jetstream\nname: replica-%d\nlisten: %s\nsecretFile: %s\n", i, listen, secret)
		if t != nil {
			text += fmt.Sprintf("tls: {certFile: %s, keyFile: %s, caFile: %[1]s}\n", t.cert, t.key)
		}
		text += "peers:\n"
		for j, address := range addresses {
			text += fmt.Sprintf("  - {name: replica-%d, address: %q}\n", j, address)
		}
		file := filepath.Join(dir, fmt.Sprintf("replica-%d.yaml", i))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
