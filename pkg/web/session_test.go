package web

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

func openStore(t *testing.T) control.Store {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// The number of attempts with codes is limited.
func TestGuessing(t *testing.T) {
	store, now := openStore(t), time.Now()
	s := NewSessions(store, "program", true, func() time.Time { return now })
	code, _, err := s.Code(t.Context(), Person{Name: "ada", Operator: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		want := errCode
		if i >= 20 {
			want = errManyTries
		}
		if _, err := s.SignIn(t.Context(), "192.0.2.1", "wrong"); !errors.Is(err, want) {
			t.Fatal(i, err)
		}
	}
	if _, err := s.SignIn(t.Context(), "192.0.2.1", code); !errors.Is(err, errManyTries) {
		t.Errorf("after a hundred wrong codes the right one is answered %v", err)
	}
	now = now.Add(2 * time.Second)
	if cookie, err := s.SignIn(t.Context(), "192.0.2.1", code); err != nil || !cookie.Secure {
		t.Error("later it is not, or its cookie goes over connections without TLS")
	}
	for range maxCodes {
		_, _, _ = s.Code(t.Context(), Person{Name: "x", Operator: true})
	}
	if _, _, err := s.Code(t.Context(), Person{Name: "x", Operator: true}); err == nil {
		t.Error("codes take space without end")
	}
	now = now.Add(codeLife)
	if _, _, err := s.Code(t.Context(), Person{Name: "x", Operator: true}); err != nil {
		t.Errorf("codes that have ended leave no room: %v", err)
	}
}

// A code from one replica signs in at another, only once in total; all replicas know the session, and signing out at
// one applies to all. The store's contents let no one sign in.
func TestReplicasKnowSessions(t *testing.T) {
	store := openStore(t)
	one, other := NewSessions(store, "program", false, time.Now), NewSessions(store, "program", false, time.Now)
	code, _, err := one.Code(t.Context(), Person{Name: "ada", Operator: true})
	if err != nil {
		t.Fatal(err)
	}
	cookie, err := other.SignIn(t.Context(), "192.0.2.1", code)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.SignIn(t.Context(), "192.0.2.1", code); !errors.Is(err, errCode) {
		t.Errorf("a code opens two replicas: %v", err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.AddCookie(cookie)
	for _, replica := range []*Sessions{one, other} {
		if who, err := replica.of(r); err != nil || who.Name != "ada" {
			t.Errorf("%+v %v", who, err)
		}
	}
	for _, bucket := range []string{codesBucket, sessionsBucket} {
		records, err := store.List(t.Context(), bucket, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range records {
			if text := record.Key + string(record.Value); strings.Contains(text, cookie.Value) || strings.Contains(text, code) {
				t.Errorf("%s: who reads the store can sign in: %s", bucket, text)
			}
		}
	}
	if _, err := one.signOut(r); err != nil {
		t.Fatal(err)
	}
	if _, err := other.of(r); !errors.Is(err, errNoSession) {
		t.Errorf("signed out at one replica, and still in at another: %v", err)
	}
}
