package deliver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// forgetful is a store whose lists are empty for a while, as is the replica that it asks for a registration.
type forgetful struct {
	control.Store
	empty atomic.Bool
}

func (s *forgetful) List(ctx context.Context, bucket, prefix string) ([]control.Record, error) {
	if s.empty.Load() {
		return nil, nil
	}
	return s.Store.List(ctx, bucket, prefix)
}

func (s *forgetful) Get(ctx context.Context, bucket, key string) (control.Record, error) {
	if bucket == "subscriptions" && s.empty.Load() {
		return control.Record{}, control.ErrNotFound
	}
	return s.Store.Get(ctx, bucket, key)
}

// A registered subscription that a list lacks is not lost: it cannot be added again, which would delete its cursor; it
// begins once a later list has it, where it stopped; and it does not end if a list lacks it.
func TestListLacks(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		k.append("x")
		time.Sleep(time.Minute)
		k.stop()
		store := &forgetful{}
		store.empty.Store(true)
		k.wrap = func(s control.Store) control.Store {
			store.Store = s
			return store
		}
		k.append("x", "y")
		k.start()
		before := k.position()
		if err := k.Add(t.Context(), me, deliver.Subscription{Name: "a", URL: hookURL}); !errors.Is(err, deliver.ErrRefused) {
			t.Errorf("added again: %v", err)
		}
		if diff := cmp.Diff(before, k.position()); diff != "" {
			t.Errorf("the cursor after that: %s", diff)
		}
		time.Sleep(2 * time.Minute)
		store.empty.Store(false)
		time.Sleep(2 * time.Minute)
		c.check(k)
		store.empty.Store(true)
		time.Sleep(2 * time.Minute)
		k.append("x")
		time.Sleep(time.Minute)
		c.check(k)
		if got := c.got(); len(got) != 4 {
			t.Errorf("%v", got)
		}
	})
}

// A position whose revision is not the known one, as after a write whose answer was lost, is written again.
func TestPositionConflict(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		write := func(value string) {
			_, err := k.config.Store.Put(t.Context(), "cursors", "a", []byte(value), k.position().Revision)
			must(t, err)
			k.append("x")
			time.Sleep(time.Minute)
		}
		write(string(k.position().Value)) // as a write whose answer was lost
		stored := string(k.position().Value)
		if !strings.Contains(stored, `"cursor":1`) {
			t.Errorf("not at 1: %s", stored)
		}
		c.check(k)
		another := strings.Replace(stored, `"cursor":1`, `"cursor":0`, 1)
		write(another) // as another worker
		if now := string(k.position().Value); now != another {
			t.Errorf("the state of another worker became %s", now)
		}
	})
}

// Each change is recorded with its author before it is made; a removed subscription leaves no data behind.
func TestChanges(t *testing.T) {
	settings := hooks()
	settings.Subscriptions = []deliver.Subscription{{Name: "fixed", URL: "https://hooks.example.com/f"}}
	simulate(t, settings, func(t *testing.T, k *kit, _ *receiver) {
		who, ctx := deliver.Who{Name: "eve\x1b[31m", By: "token", Cluster: "prod"}, t.Context()
		one := deliver.Subscription{Name: "a", URL: hookURL}
		for _, step := range []struct {
			what string
			err  error
			want error
		}{
			{"add", k.Add(ctx, who, one), nil},
			{"add again", k.Add(ctx, who, one), deliver.ErrRefused},
			{"pause", k.Pause(ctx, who, "a"), nil},
			{"resume", k.Resume(ctx, who, "a"), nil},
			{"replay", k.Replay(ctx, who, "a", 0), nil},
			{"pause fixed", k.Pause(ctx, who, "fixed"), nil},
			{"remove fixed", k.Remove(ctx, who, "fixed"), deliver.ErrRefused},
			{"remove", k.Remove(ctx, who, "a"), nil},
			{"remove again", k.Remove(ctx, who, "a"), deliver.ErrUnknown},
			{"pause nothing", k.Pause(ctx, who, "a"), deliver.ErrUnknown},
			{"a letter of nothing", k.Forget(ctx, who, "a", "../x"), deliver.ErrUnknown},
			{"a letter of nobody", k.Redeliver(ctx, who, "a.b", "x"), deliver.ErrUnknown},
		} {
			if !errors.Is(step.err, step.want) || step.want == nil && step.err != nil {
				t.Errorf("%s: %v, want %v", step.what, step.err, step.want)
			}
		}
		entries, err := k.Audit(ctx, 100)
		must(t, err)
		var done []string
		for _, e := range slices.Backward(entries) {
			done = append(done, e.What+" "+e.Subscription)
			if e.Who != (deliver.Who{Name: "eve [31m", By: "token", Cluster: "prod"}) || time.Since(e.At) > time.Hour {
				t.Errorf("%+v", e)
			}
		}
		want := []string{"add a", "pause a", "resume a", "replay a", "pause fixed", "remove a"}
		if diff := cmp.Diff(want, done); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Minute)
		for _, bucket := range []string{"subscriptions", "cursors"} {
			if records, err := k.config.Store.List(ctx, bucket, "a"); len(records) > 0 || err != nil {
				t.Errorf("%s: %v, %v", bucket, records, err)
			}
		}
	})
}

// A change that cannot be recorded is not made.
func TestUnaudited(t *testing.T) {
	k := newKit(t, hooks(), &receiver{})
	k.stop() // the store is closed
	if err := k.Add(t.Context(), me, deliver.Subscription{Name: "a", URL: hookURL}); err == nil || len(k.List()) > 0 {
		t.Errorf("%v, %v", err, k.List())
	}
}

// An invalid subscription is refused when it is registered.
func TestRefused(t *testing.T) {
	k := newKit(t, anywhereAt("https://hooks.example.com/team/"), &receiver{})
	good := deliver.Subscription{Name: "a", URL: "https://hooks.example.com/team/a"}
	for want, change := range map[string]func(*deliver.Subscription){
		"not among the targets":        func(s *deliver.Subscription) { s.URL = "https://hooks.example.com/other" },
		"not among the targets that":   func(s *deliver.Subscription) { s.URL = "https://hooks.example.com/teamwork" },
		"not among":                    func(s *deliver.Subscription) { s.URL = "https://hooks.example.com:444/team/a" },
		"among the targets":            func(s *deliver.Subscription) { s.URL = "http://hooks.example.com/team/a" },
		"among the":                    func(s *deliver.Subscription) { s.URL = "https://hooks.example.com.evil.com/team/a" },
		"want no user":                 func(s *deliver.Subscription) { s.URL = "https://me:x@hooks.example.com/team/a" },
		`its path is "/other"`:         func(s *deliver.Subscription) { s.URL = "https://hooks.example.com/team/../other" },
		"no encoded path":              func(s *deliver.Subscription) { s.URL = "https://hooks.example.com/team%2f..%2fother" },
		"want https://HOST":            func(s *deliver.Subscription) { s.URL = "file:///etc/passwd" },
		"name":                         func(s *deliver.Subscription) { s.Name = "a.b" },
		"too costly":                   func(s *deliver.Subscription) { s.CEL = "data.a.all(x, data.b.all(y, x == y))" },
		"no expression":                func(s *deliver.Subscription) { s.CEL = "severity ==" },
		"mode":                         func(s *deliver.Subscription) { s.Mode = "mail" },
		"after":                        func(s *deliver.Subscription) { s.After = "-1" },
		"is not here yet":              func(s *deliver.Subscription) { s.After = "7" },
		`filter "color"`:               func(s *deliver.Subscription) { s.Filter = journal.Filter{"color": {"red"}} },
		`"node": want 1 to 100 values`: func(s *deliver.Subscription) { s.Filter = journal.Filter{"node": nil} },
	} {
		one := good
		change(&one)
		err := k.Add(t.Context(), deliver.Who{}, one)
		if !errors.Is(err, deliver.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", one, err, want)
		}
	}
	for range 100 {
		one := good
		one.Name = fmt.Sprintf("a%d", len(k.List()))
		must(t, k.Add(t.Context(), deliver.Who{}, one))
	}
	if err := k.Add(t.Context(), deliver.Who{}, good); !errors.Is(err, deliver.ErrRefused) {
		t.Errorf("the 101st: %v", err)
	}
}

func TestSettings(t *testing.T) {
	const target = "targets: [{url: https://a.example.com/, secretFile: /s}]\n"
	for text, want := range map[string]string{
		target + "subscriptions: [{name: x, url: 'https://a.example.com/x', filter: {severity: [fatal]}}]\ngiveUpAfter: 1h": "",
		"targets: [{url: https://a.example.com/}]":                "secretFile",
		"targets: [{url: https://a.example.com/, secretFile: s}]": "absolute",
		"targets: [{url: ftp://a/, secretFile: /s}]":              "want https://HOST",
		"target: []": "not found",
		target + "subscriptions: [{name: x, url: 'https://b.example.com/'}]": "not among",
		target + "giveUpAfter: 1ms": "at least 1s",
		target + "origin: 'a b'":    "origin",
		target + "---\na: b":        "more than one",
		target + "subscriptions: [{name: x, url: 'https://a.example.com/x'}, {name: x, url: 'https://a.example.com/y'}]": "twice",
	} {
		_, err := deliver.Read(strings.NewReader(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// The number of dead letters is limited; dropped ones are counted and logged.
func TestDeadLettersAreBounded(t *testing.T) {
	settings := hooks()
	settings.GiveUpAfter, settings.MaxDeadLetters = time.Minute, 3
	simulate(t, settings, func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		c.answers(refusing("x-1", "x-2", "x-3", "x-4", "x-5"))
		k.append("x", "x", "x", "x", "x", "x", "y")
		time.Sleep(2 * time.Hour)
		letters, s := k.letters(), k.status()
		if len(letters) != 3 || letters[0].Offset != "3" || s.Dropped != 2 || s.Dead != 5 || s.DeadLetters != 3 {
			t.Errorf("%+v, %+v", letters, s)
		}
		entries, err := k.Audit(t.Context(), 2)
		if err != nil || len(entries) != 2 || entries[0].What != "drop the oldest dead letter" ||
			entries[0].Who.Name != "eventcenter" {
			t.Errorf("%+v, %v", entries, err)
		}
		c.expect(t, "y-1", "x-6")
	})
}

// A subscriber that stays away for longer than events are kept gets an event about those that it has missed.
func TestGap(t *testing.T) {
	settings := hooks()
	settings.GiveUpAfter = 7 * 24 * time.Hour
	simulate(t, settings, func(t *testing.T, k *kit, c *receiver) {
		c.answers(refusing("held-1"))
		k.add(deliver.Subscription{})
		k.append("held", "other") // no offset is before that of the node's lost event
		time.Sleep(time.Minute)
		k.stop()
		k.append("x", "x")
		time.Sleep(24 * time.Hour)
		k.append("x", "held")
		must(t, k.journal.Trim(t.Context(), 4))
		k.start()
		var gaps []cloudevents.Event
		c.answers(func(_ http.ResponseWriter, _ *http.Request, events []cloudevents.Event) int {
			for _, e := range events {
				if strings.HasSuffix(e.Type(), "subscription.gap.v1") {
					gaps = append(gaps, e)
				}
			}
			return http.StatusNoContent
		})
		time.Sleep(10 * time.Minute)
		if missed := k.status().Missed; missed != 6 {
			t.Errorf("%d offsets are counted as missed, want 2 of all and 4 of a node", missed)
		}
		if got := c.got(); len(gaps) != 2 || len(got) != 5 || !slices.Contains(got, "x-3") || !slices.Contains(got, "held-2") {
			t.Errorf("%d gaps, %v", len(gaps), got)
		}
		for _, e := range gaps {
			text, err := json.Marshal(e)
			must(t, errors.Join(err, schematest.Problem(text)))
			from := `"from":"3","to":"4"`
			if strings.Contains(string(text), `"node":"held"`) {
				from = `"from":"1","to":"4"` // its first event was not taken
			}
			if !strings.Contains(string(text), from) {
				t.Errorf("%s", text)
			}
		}
	})
}

// The secrets of a target are read again: if there are two, each signs, so that one can replace the other; if there is
// none, the center sends no events.
func TestSecret(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		whole, err := os.ReadFile(k.secretFile())
		must(t, err)
		k.add(deliver.Subscription{})
		for _, text := range []string{"", "whsec_c2hvcnQ=", "0123456789012345678901234567890", strings.Repeat("x", 5000)} {
			k.writeSecret(text)
			k.append("x")
			time.Sleep(time.Hour)
			if n := c.asked(); n > 0 || !strings.Contains(k.status().Problem, "secretFile") {
				t.Errorf("%.40q: %d requests, %+v", text, n, k.status())
			}
		}
		k.writeSecret("whsec_" + strings.Repeat("QUJD", 8) + "\n" + string(whole))
		time.Sleep(time.Hour)
		c.check(k) // the second signature is right
	})
}
