package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/test/need"
)

// All replicas act as one: a person who signs in or out at one is signed in or out at all; and each replica answers
// about subscriptions, and changes them, though only one delivers.
func TestReplicasAreOne(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := newReplicas(t)
	h := newWebhook(t)
	file := h.settings("")
	r.each(func(i int) { r.all[i] = start(t, r.dirs[i], "--replicas", r.files[i], "--subscriptions", file) })
	worker := r.worker(nil)
	other, third := r.all[(worker+1)%3], r.all[(worker+2)%3]
	body := []byte(`{"name":"all","url":"` + h.url + `/hook"}`)
	if status, answer, err := other.do(http.MethodPost, "/v1/subscriptions", "application/json", body); err != nil ||
		status != http.StatusOK {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	for i, p := range r.all {
		for _, path := range []string{"/v1/subscriptions", "/v1/audit"} {
			status, answer, err := p.do(http.MethodGet, path, "", nil)
			if err != nil || status != http.StatusOK || !bytes.Contains(answer, []byte(`"all"`)) {
				t.Errorf("replica %d: %s: %d %s %v", i, path, status, answer, err)
			}
		}
	}
	alive := raised("node-1", 1)
	alive.Type, alive.Subject = event.AgentAlive, event.Subject{}
	alive.Data = event.Agent{Version: "1.2.3", LastSequence: "1"}
	must(t, other.post(raised("node-1", 1)))
	must(t, other.post(alive))
	r.answers(third, "/v1/nodes", "1.2.3") // signs of life reach all replicas, though they are not journaled
	status, answer, err := third.do(http.MethodPost, "/v1/sign-in-codes?name=ada", "", nil)
	var code struct{ Code string }
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &code) != nil {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	cookie := signIn(t, other, code.Code)
	for i, p := range r.all {
		if status, page := browse(t, p, cookie, "/subscriptions", nil); status != http.StatusOK ||
			!strings.Contains(page, "ada") || !strings.Contains(page, "all") {
			t.Errorf("replica %d: %d %s", i, status, page)
		}
	}
	_, page := browse(t, third, cookie, "/", nil)
	_, form, _ := strings.Cut(page, `name="form" value="`)
	form, _, _ = strings.Cut(form, `"`)
	if status, page := browse(t, third, cookie, "/logout", []byte("form="+form)); status != http.StatusSeeOther {
		t.Errorf("%d %s", status, page)
	}
	for i, p := range r.all { // a copy may lag slightly
		if !eventually(patience, func() bool {
			status, _ = browse(t, p, cookie, "/", nil)
			return status == http.StatusSeeOther
		}) {
			t.Errorf("replica %d: signed out, and still in: %d", i, status)
		}
	}
}

// answers waits until a response contains a text.
func (r *threeReplicas) answers(p *process, path, want string) {
	r.t.Helper()
	var body []byte
	if !eventually(patience, func() bool {
		var err error
		_, body, err = p.do(http.MethodGet, path, "", nil)
		return err == nil && bytes.Contains(body, []byte(want))
	}) {
		r.t.Fatalf("%s: no %s in %s", path, want, body)
	}
}

// signIn exchanges a code for a cookie.
func signIn(t *testing.T, p *process, code string) *http.Cookie {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/login", strings.NewReader("code="+code))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusSeeOther || len(response.Cookies()) != 1 {
		t.Fatal(response.Status)
	}
	return response.Cookies()[0]
}

// browse opens a page as a browser with a cookie does. A form makes it a POST.
func browse(t *testing.T, p *process, cookie *http.Cookie, path string, form []byte) (status int, page string) {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, bytes.NewReader(form))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(cookie)
	response, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}
