package web

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// A program that brings one template has a layout with its name and navigation, signing in, and rights of operators.
func TestSite(t *testing.T) {
	sessions := NewSessions(openStore(t), "tracer", false, time.Now)
	pages := fstest.MapFS{"templates/pods.html": {Data: []byte(`{{define "content"}}{{plain .Data}}{{end}}`)}}
	s := New(Config{Program: "tracer", Name: "trace center", Templates: pages, Sessions: sessions, Now: time.Now,
		Log: slog.New(slog.DiscardHandler), Navigation: []Link{{"pods", "Pods", "/"}}})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.SignedIn(func(w http.ResponseWriter, r *http.Request, _ Session) {
		s.Show(w, r, http.StatusOK, "pods", View{Title: "Pods", Data: "<b>late"})
	}))
	mux.HandleFunc("POST /x", s.Operators("not for readers", func(http.ResponseWriter, *http.Request, Session) {}))
	handler := s.Handler(mux)
	var cookie *http.Cookie
	do := func(method, path string, form url.Values) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if cookie != nil {
			r.AddCookie(cookie)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if c := w.Result().Cookies(); len(c) > 0 {
			cookie = c[0]
		}
		if w.Header().Get("Content-Security-Policy") != Policy {
			t.Errorf("%s: without policy", path)
		}
		return w.Code, w.Body.String()
	}
	if code, _ := do("GET", "/", nil); code != http.StatusSeeOther {
		t.Errorf("not signed in: %d", code)
	}
	if _, page := do("GET", "/login", nil); !strings.Contains(page, "<code>tracer login</code>") {
		t.Errorf("no way to sign in:\n%s", page)
	}
	code, _, err := sessions.Code(t.Context(), Person{Name: "ada", Operator: false})
	if err != nil {
		t.Fatal(err)
	}
	do("POST", "/login", url.Values{"code": {code}})
	if cookie == nil || cookie.Name != "tracer-session" {
		t.Fatalf("cookie %v", cookie)
	}
	_, page := do("GET", "/", nil)
	for _, want := range []string{"<title>Pods · trace center</title>", `<a href="/" aria-current="page">Pods</a>`, "&lt;b&gt;late", "ada"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	form := url.Values{"form": {strings.Split(strings.SplitAfter(page, `name="form" value="`)[1], `"`)[0]}}
	if code, page := do("POST", "/x", form); code != http.StatusForbidden || !strings.Contains(page, "not for readers") {
		t.Errorf("a reader acts: %d", code)
	}
	if code, page := do("GET", "/none", nil); code != http.StatusNotFound || !strings.Contains(page, "There is no such page") {
		t.Errorf("%d\n%s", code, page)
	}
}

// A code that comes after too many wrong ones is answered 429, and stays good. A client that leaves is no error.
func TestSignInRefused(t *testing.T) {
	now := time.Now()
	sessions := NewSessions(openStore(t), "tracer", false, func() time.Time { return now })
	var log bytes.Buffer
	handler := New(Config{Sessions: sessions, Now: time.Now, Templates: fstest.MapFS{},
		Log: slog.New(slog.NewTextHandler(&log, nil))}).Handler(http.NewServeMux())
	enter := func(ctx context.Context, code string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, "POST", "/login", strings.NewReader(url.Values{"code": {code}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	code, _, err := sessions.Code(t.Context(), Person{Name: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	for range 25 {
		enter(t.Context(), "wrong")
	}
	if w := enter(t.Context(), code); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" ||
		!strings.Contains(w.Body.String(), "Too many codes") {
		t.Errorf("%d %v\n%s", w.Code, w.Header(), w.Body)
	}
	now = now.Add(10 * time.Second)
	if w := enter(t.Context(), code); w.Code != http.StatusSeeOther {
		t.Errorf("the code is used up: %d", w.Code)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	enter(gone, "any")
	if log.Len() > 0 {
		t.Errorf("a client that left is in the log: %s", log.String())
	}
}
