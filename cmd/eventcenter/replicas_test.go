package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
)

var (
	long = flag.Bool("long", false, "run the tests of replicas too that take longer, and more rounds of kills")
	soak = flag.Duration("soak", 10*time.Minute, "with -long: how long TestKilled kills")
)

// threeReplicas are three separate processes.
type threeReplicas struct {
	t     *testing.T
	net   *clustertest.Network
	dirs  [3]string
	files [3]string
	flags []string // of each
	all   [3]*process
}

func startReplicas(t *testing.T, flags ...string) *threeReplicas {
	t.Helper()
	r := newReplicas(t)
	r.flags = flags
	r.each(r.start)
	return r
}

// each does something with each replica at once, and ends the test if one fails.
func (r *threeReplicas) each(do func(i int)) {
	r.t.Helper()
	var all sync.WaitGroup
	for i := range r.all {
		all.Go(func() { do(i) })
	}
	all.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// newReplicas creates their files.
func newReplicas(t *testing.T) *threeReplicas {
	t.Helper()
	r := &threeReplicas{t: t, net: clustertest.New(t)}
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("what the replicas show\n"), 0o600))
	certificates := t.TempDir()
	writeCertificate(t, certificates, 1)
	for i := range r.all {
		r.dirs[i] = t.TempDir()
		r.files[i] = filepath.Join(t.TempDir(), "replicas.yaml")
		addresses := r.net.Routes[i]
		addresses[i] = r.net.Listen[i]
		must(t, os.WriteFile(r.files[i], []byte(replicasFile(i, secret, certificates, addresses[:])), 0o600))
	}
	return r
}

// replicasFile returns the settings of a replica, with the folder of its certificate, if it has one.
func replicasFile(i int, secret, certificates string, addresses []string) string {
	text := fmt.Sprintf("journal: jetstream\nname: replica-%d\nlisten: %q\nsecretFile: %s\n", i, addresses[i], secret)
	if certificates != "" {
		text += fmt.Sprintf("tls: {certFile: %[1]s/cert, keyFile: %[1]s/key, caFile: %[1]s/cert}\n", certificates)
	}
	text += "peers:\n"
	for j, address := range addresses {
		text += fmt.Sprintf("  - {name: replica-%d, address: %q}\n", j, address)
	}
	return text
}

func (r *threeReplicas) start(i int) { r.startAs(os.Args[0], i) }

// startAs is start for another build of the program.
func (r *threeReplicas) startAs(binary string, i int) {
	r.t.Helper()
	r.all[i] = startAs(r.t, binary, r.dirs[i], append([]string{"--replicas", r.files[i]}, r.flags...)...)
}

// once reports events that are not there exactly once on each replica.
func (r *threeReplicas) once(l *load) {
	r.t.Helper()
	var newest uint64
	for _, p := range r.all { // the others may not have the last events yet
		there, err := p.newest()
		must(r.t, err)
		newest = max(newest, there)
	}
	for i, p := range r.all {
		await(r.t, func() error {
			there, err := p.newest()
			return unless(err == nil && there >= newest, "replica %d is at %d of %d: %v %s", i, there, newest, err, p.log)
		})
		stored := readAll(r.t, p)
		l.once(r.t, stored)
		r.t.Logf("replica %d: %d acknowledged, %d stored", i, len(l.acked), len(stored))
	}
}

// worker returns the replica whose log shows that it is the worker, once it knows a subscription.
func (r *threeReplicas) worker(subscription string) (worker int) {
	r.t.Helper()
	await(r.t, func() error {
		working := 0
		for i, p := range r.all {
			log := p.log.String()
			if strings.LastIndex(log, "this replica is the worker") > strings.LastIndex(log, "this replica is no longer the worker") {
				worker = i
				working++
			}
		}
		if working != 1 {
			return fmt.Errorf("%d replicas deliver: %s", working, r.all[0].log)
		}
		return r.all[0].has("/v1/subscriptions", http.StatusOK, subscription)
	})
	return worker
}

// subscribe registers a subscription of this name.
func (h *webhook) subscribe(p *process, name string) {
	h.t.Helper()
	must(h.t, p.send("/v1/subscriptions", "application/json", fmt.Appendf(nil, `{"name":%q,"url":"%s/hook"}`, name, h.url)))
}

// The worker of three replicas is killed again and again, and one that is not the worker, while they get the events:
// every event acknowledged by any of them is there exactly once, at the same offset on all, and is delivered by the next
// worker, which continues at the cursor; and a subscriber that changes to another replica when its stream ends sees each
// offset once.
func TestReplicasKilled(t *testing.T) {
	rounds := 1
	if *long {
		rounds = 9
	}
	l := newLoad(8)
	u := newUsers(t, l, false)
	r := startReplicas(t, "--subscriptions", u.hook.settings(""))
	r.worker("")
	u.hook.subscribe(r.all[0], "all") // a worker that lost its cursor would begin at the newest event
	for range rounds {
		victim := r.worker(`"all"`)
		u.during(r.all[victim], func() {
			l.wait(t, 200)
			r.all[victim].stop(syscall.SIGKILL)
		})
		other := (victim + 1) % 3
		u.during(r.all[other], func() {
			l.wait(t, 200)
			r.start(victim)
			l.wait(t, 100)
			r.all[other].stop(syscall.SIGTERM)
		})
		r.start(other)
		idle := (r.worker(`"all"`) + 1) % 3
		u.during(r.all[idle], func() {
			l.wait(t, 200)
			r.all[idle].stop(syscall.SIGKILL)
		})
		r.start(idle)
	}
	r.once(l)
	u.haveAll(r.all[2], len(readAll(t, r.all[2])))
}

// A journal of one kind is not opened as the other, and not migrated while a center has it open.
func TestMigrateRefused(t *testing.T) {
	r := newReplicas(t)
	p := start(t, r.dirs[0])
	must(t, p.post(raised("n", 1)))
	refused := func(want string, args ...string) {
		t.Helper()
		expect(t, exitCouldNotTell, want, append(args, "--dir", r.dirs[0])...)
	}
	refused("the center must be stopped", "migrate", "--replicas", r.files[0])
	p.stop(syscall.SIGTERM)
	refused("eventcenter migrate", "serve", "--listen", "127.0.0.1:0", "--replicas", r.files[0])
	must(t, os.WriteFile(filepath.Join(r.dirs[0], "journal", "copy"), nil, 0o600))
	refused("a replica's copy", "serve", "--listen", "127.0.0.1:0")
}
