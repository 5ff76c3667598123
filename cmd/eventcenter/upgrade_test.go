package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// nextVersion is a program whose replicas exchange data that this version does not know.
var nextVersion = change{"pkg/eventcenter/journal/jetstream/message.go", []string{
	"`json:\"first,string\"`\n", "`json:\"first,string\"`\n\tRegion   string `json:\"region\"`\n",
	"head{Version: messageVersion, First: next,", "head{Version: messageVersion, Region: \"eu\", First: next,"}}

// Three replicas are upgraded to the next version, one by one and under load, and then downgraded: every acknowledged
// event is there exactly once, at the same offset on all.
func TestUpgradeReplicas(t *testing.T) {
	need.Flag(t, *long, "-long")
	next := buildWith(t, t.TempDir(), nextVersion)
	r := startReplicas(t)
	l := newLoad(8)
	var running sync.WaitGroup
	running.Go(func() { l.send(r.all[0]) })
	for _, binary := range []string{next, os.Args[0]} {
		for i := range r.all {
			l.wait(t, 50)
			r.all[i].stop(syscall.SIGTERM) // the replica that gets the events
			running.Wait()
			other := r.all[(i+1)%3]
			running.Go(func() { l.send(other) })
			l.wait(t, 50)
			r.all[i] = startAs(t, binary, r.dirs[i], "--replicas", r.files[i])
		}
	}
	l.wait(t, 50)
	l.over.Store(true)
	running.Wait()
	r.once(l)
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
		r.await(i, newest)
		stored := readAll(r.t, p)
		l.once(r.t, stored)
		r.t.Logf("replica %d: %d acknowledged, %d stored", i, len(l.acked), len(stored))
	}
}

// Without the others, a replica is alive, not ready (with the reason), stores no events, asks clients to retry, and answers
// reads; also when the others have come back without their volumes. With the documented steps, its events are restored at
// the same offsets, under another UUID, which tells consumers.
func TestTwoLostVolumes(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := startReplicas(t)
	l := newLoad(8)
	var running sync.WaitGroup
	running.Go(func() { l.send(r.all[0]) })
	l.wait(t, 200)
	l.over.Store(true)
	running.Wait()
	r.once(l)
	_, before, err := r.all[2].do(http.MethodGet, "/v1/events?limit=1000", "", nil)
	must(t, err)
	archive, restored := filepath.Join(t.TempDir(), "backup.tar"), filepath.Join(t.TempDir(), "new")
	for i := range 2 {
		r.all[i].stop(syscall.SIGKILL)
		empty(t, r.dirs[i])
	}
	if err := r.all[2].post(raised("lost", 1)); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("sent to one of three: %v", err)
	}
	r.notReady(r.all[2], "reason")
	for _, path := range []string{"/healthz", "/v1/faults", "/v1/events"} {
		if status, body, err := r.all[2].do(http.MethodGet, path, "", nil); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d %s %v", path, status, body, err)
		}
	}
	r.all[2].stop(syscall.SIGKILL)
	var left [3]*process
	for i := range left {
		left[i] = startUnready(t, r.dirs[i], "--replicas", r.files[i])
	}
	r.answers(left[2], "/v1/events", "dns/Slow") // its own events
	for i, p := range left {
		if err := p.post(raised("lost", 1)); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	for _, p := range left {
		p.stop(syscall.SIGKILL)
	}
	for i := range 2 {
		empty(t, r.dirs[i])
	}
	for _, args := range [][]string{{"backup", archive, "--dir", r.dirs[2]}, {"restore", archive, "--dir", restored}} {
		if out, code := cli(t, args...); code != exitFine {
			t.Fatalf("%v: %s", args, out)
		}
	}
	empty(t, r.dirs[2])
	r.dirs[2] = restored
	r.each(func(i int) {
		out, code := cli(t, "migrate", "--dir", r.dirs[i], "--replicas", r.files[i])
		if code != exitFine || i == 2 && !strings.Contains(out, "are in JetStream, the same by count and hash") {
			t.Errorf("replica %d: %d %s", i, code, out)
		}
	})
	r.each(r.start)
	r.once(l)
	for i, p := range r.all {
		_, after, err := p.do(http.MethodGet, "/v1/events?limit=1000", "", nil)
		if err != nil || withoutJournal(t, before) != withoutJournal(t, after) {
			t.Errorf("replica %d: %v\n%.300s\nbefore\n%.300s", i, err, after, before)
		}
	}
	var old struct{ Journal string }
	must(t, json.Unmarshal(before, &old))
	status, body, err := r.all[0].do(http.MethodGet, "/v1/events?after=1&journal="+old.Journal, "", nil)
	if err != nil || status != http.StatusGone {
		t.Errorf("a cursor of the journal that was: %d %s %v", status, body, err)
	}
	if err := r.all[1].post(raised("after", 1)); err != nil {
		t.Error(err)
	}
}

// empty removes the contents of a directory.
func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil {
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	must(t, err)
}

// withoutJournal returns a response without the journal's UUID.
func withoutJournal(t *testing.T, answer []byte) string {
	t.Helper()
	var a struct{ Journal string }
	if err := json.Unmarshal(answer, &a); err != nil || a.Journal == "" {
		t.Fatalf("%v: %.300s", err, answer)
	}
	return strings.ReplaceAll(string(answer), a.Journal, "")
}
