package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/test/need"
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
	secret := put(t, t.TempDir(), "secret", "what the replicas show\n")
	certificates := t.TempDir()
	writeCertificate(t, certificates, 1)
	for i := range r.all {
		r.dirs[i] = t.TempDir()
		addresses := r.net.Routes[i]
		addresses[i] = r.net.Listen[i]
		r.files[i] = put(t, t.TempDir(), "replicas.yaml", replicasFile(i, secret, certificates, addresses[:]))
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
	body := fmt.Appendf(nil, `{"name":%q,"url":"%s/hook"}`, name, h.url)
	must(h.t, p.send("/v1/subscriptions", "application/json", body))
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
	put(t, filepath.Join(r.dirs[0], "journal"), "copy", "")
	refused("a replica's copy", "serve", "--listen", "127.0.0.1:0")
}

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
	end := l.begin(r.all[0])
	for _, binary := range []string{next, os.Args[0]} {
		for i := range r.all {
			l.wait(t, 50)
			r.all[i].stop(syscall.SIGTERM) // the replica that gets the events
			end()
			end = l.begin(r.all[(i+1)%3])
			l.wait(t, 50)
			r.startAs(binary, i)
		}
	}
	l.wait(t, 50)
	end()
	r.once(l)
}

// Without the others, a replica is alive, not ready (with the reason), stores no events, asks clients to retry, and answers
// reads. With the documented steps, its events are restored at
// the same offsets, under another UUID, which tells consumers.
func TestTwoLostVolumes(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := startReplicas(t)
	l := newLoad(8)
	end := l.begin(r.all[0])
	l.wait(t, 200)
	end()
	r.once(l)
	before, uuid := r.all[2].contents("/v1/events?limit=1000")
	archive, restored := filepath.Join(t.TempDir(), "backup.tar"), filepath.Join(t.TempDir(), "new")
	for i := range 2 {
		r.all[i].stop(syscall.SIGKILL)
		empty(t, r.dirs[i])
	}
	r.all[2].writesNothing("reason")
	r.all[2].stop(syscall.SIGKILL)
	expect(t, exitFine, "", "backup", archive, "--dir", r.dirs[2])
	expect(t, exitFine, "", "restore", archive, "--dir", restored)
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
		after, another := p.contents("/v1/events?limit=1000")
		if diff := cmp.Diff(before, after); diff != "" || uuid == another {
			t.Errorf("replica %d: the journal is %s, was %s\n%.1000s", i, another, uuid, diff)
		}
	}
	must(t, r.all[0].has(fmt.Sprint("/v1/events?after=1&journal=", uuid), http.StatusGone))
	must(t, r.all[1].post(raised("after", 1)))
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

// All replicas act as one: a person who signs in or out at one is signed in or out at all; and each replica answers
// about subscriptions, and changes them, though only one delivers.
func TestReplicasAreOne(t *testing.T) {
	need.Flag(t, *long, "-long")
	h := newWebhook(t, false)
	r := startReplicas(t, "--subscriptions", h.settings(""))
	worker := r.worker("")
	other, third := r.all[(worker+1)%3], r.all[(worker+2)%3]
	h.subscribe(other, "all")
	for _, p := range r.all {
		must(t, p.has("/v1/subscriptions", http.StatusOK, `"all"`))
		must(t, p.has("/v1/audit", http.StatusOK, `"all"`))
	}
	alive := raised("node-1", 1)
	alive.Type, alive.Subject = event.AgentAlive, event.Subject{}
	alive.Data = event.Agent{Version: "1.2.3", LastSequence: "1"}
	must(t, other.post(raised("node-1", 1)))
	must(t, other.post(alive))
	await(t, func() error { // signs of life reach all replicas, though they are not journaled
		return third.has("/v1/nodes", http.StatusOK, "1.2.3")
	})
	status, answer, err := third.do(http.MethodPost, "/v1/sign-in-codes?name=ada", "", nil)
	var code struct{ Code string }
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &code) != nil {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	response, _ := browse(t, other, nil, "/login", "code="+code.Code)
	if response.StatusCode != http.StatusSeeOther || len(response.cookies) != 1 {
		t.Fatal(response.Status)
	}
	cookie := response.cookies[0]
	for i, p := range r.all {
		response, page := browse(t, p, cookie, "/subscriptions", "")
		if err := contains(page, "ada", "all"); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("replica %d: %s %v", i, response.Status, err)
		}
	}
	_, page := browse(t, third, cookie, "/", "")
	_, form, _ := strings.Cut(page, `name="form" value="`)
	form, _, _ = strings.Cut(form, `"`)
	if response, page := browse(t, third, cookie, "/logout", "form="+form); response.StatusCode != http.StatusSeeOther {
		t.Errorf("%s %s", response.Status, page)
	}
	for i, p := range r.all { // a copy may lag slightly
		await(t, func() error {
			response, _ := browse(t, p, cookie, "/", "")
			return unless(response.StatusCode == http.StatusSeeOther, "replica %d: still in: %s", i, response.Status)
		})
	}
}

// opened is an answer, read to its end.
type opened struct {
	StatusCode int
	Status     string
	cookies    []*http.Cookie
}

// browse opens a page as a browser with a cookie does, if any. A form makes it a POST.
func browse(t *testing.T, p *process, cookie *http.Cookie, path, form string) (opened, string) {
	t.Helper()
	method := http.MethodGet
	if form != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, strings.NewReader(form))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if cookie != nil {
		r.AddCookie(cookie)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	must(t, err)
	return opened{response.StatusCode, response.Status, response.Cookies()}, string(page)
}
