package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
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
// reads; also when the others have come back without their volumes. With the documented steps, its events are restored at
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
	var left [3]*process
	for i := range left {
		left[i] = startUnready(t, r.dirs[i], "--replicas", r.files[i])
	}
	await(t, func() error { return left[2].has("/v1/events", http.StatusOK, "dns/Slow") }) // its own events
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
	if response.StatusCode != http.StatusSeeOther || len(response.Cookies()) != 1 {
		t.Fatal(response.Status)
	}
	cookie := response.Cookies()[0]
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
			return unless(response.StatusCode == http.StatusSeeOther, "replica %d: signed out, and still in: %s", i, response.Status)
		})
	}
}

// browse opens a page as a browser with a cookie does, if any. A form makes it a POST.
func browse(t *testing.T, p *process, cookie *http.Cookie, path, form string) (*http.Response, string) {
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
	return response, string(page)
}
