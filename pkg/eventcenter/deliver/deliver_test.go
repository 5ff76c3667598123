package deliver_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// An event that a subscriber refuses holds back only its own node, for 24 hours; then it becomes a dead letter, and the
// node continues.
func TestHeldBack(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		c.answers(refusing("bad-1"))
		k.append("bad", "good", "bad", "good", "other")
		time.Sleep(time.Minute)
		if got := slices.Sorted(slices.Values(c.got())); !slices.Equal(got, []string{"good-1", "good-2", "other-1"}) {
			t.Errorf("%v came beside the one that is refused", got)
		}
		k.append("good", "bad", "new")
		time.Sleep(time.Minute)
		if got := c.got(); len(got) != 5 || slices.Contains(got, "bad-2") {
			t.Errorf("%v came later", got)
		}
		s := k.status()
		if s.Held != 1 || s.HeldBack[0].Node != "bad" || !strings.Contains(s.HeldBack[0].Error, "I do not like it") ||
			s.LagEvents != 0 || s.LagSeconds < 100 || s.DeadLetters != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(23 * time.Hour)
		if asked := c.asked(); asked > 1500 || k.status().DeadLetters > 0 {
			t.Errorf("%d requests within a day; %+v", asked, k.status())
		}
		time.Sleep(2 * time.Hour)
		if got := c.got(); !slices.Equal(got[5:], []string{"bad-2", "bad-3"}) {
			t.Errorf("%v came after it was given up", got)
		}
		letters := k.letters()
		if len(letters) != 1 || letters[0].Offset != "1" || letters[0].Attempts < 100 || k.status().Held > 0 {
			t.Fatalf("%+v, %+v", letters, k.status())
		}
		whole, err := k.DeadLetter(t.Context(), "a", letters[0].ID)
		if err != nil || !strings.Contains(string(whole.Event), `"bad-1"`) {
			t.Errorf("%+v, %v", whole, err)
		}
	})
}

// A dead letter can be delivered later. It is not copied into the record of the position, which many large ones would
// exceed; and it is not sent if it is deleted meanwhile.
func TestRedeliverCopiesNothing(t *testing.T) {
	settings := hooks()
	settings.GiveUpAfter = time.Minute
	simulate(t, settings, func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		c.answers(refusing("x-1", "z-1"))
		k.append("x", "y", "z")
		time.Sleep(2 * time.Hour)
		letters := k.letters()
		for _, letter := range letters {
			must(t, k.Redeliver(t.Context(), me, "a", letter.ID))
		}
		time.Sleep(30 * time.Second) // they are refused again, and not yet given up
		if position := string(k.position().Value); strings.Contains(position, `"event"`) ||
			!strings.Contains(position, letters[0].ID) {
			t.Error(position)
		}
		must(t, k.Forget(t.Context(), me, "a", letters[0].ID))
		c.answers(nil)
		time.Sleep(time.Hour)
		c.expect(t, "y-1", "z-1")
		if s := k.status(); s.Held != 0 || s.DeadLetters != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A subscriber that is down, in whatever way, holds back only itself: when it returns it gets everything, in order, and
// until then it is asked less and less often. No redirect is followed.
func TestDown(t *testing.T) {
	for name, test := range map[string]struct {
		answer  answer
		problem string
	}{
		"fails":     {status(500), "500 Internal Server Error"},
		"unknown":   {status(404), "404 Not Found"},
		"too large": {status(413), "413 Request Entity Too Large"},
		"redirects": {func(w http.ResponseWriter, r *http.Request, _ []cloudevents.Event) int {
			if r.URL.String() != hookURL {
				t.Errorf("the redirect to %s was followed", r.URL)
			}
			w.Header().Set("Location", "https://other.example.com/a")
			return http.StatusPermanentRedirect
		}, "redirects are not followed"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request, _ []cloudevents.Event) int {
			<-r.Context().Done()
			return http.StatusInternalServerError
		}, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
				k.add(deliver.Subscription{})
				c.answers(test.answer)
				for n := range 23 * 4 {
					var nodes []string
					for node := range 10 {
						nodes = append(nodes, fmt.Sprintf("n%d", (n+node)%20))
					}
					k.append(nodes...)
					time.Sleep(15 * time.Minute)
				}
				s := k.status()
				if s.Held > 5 || s.DeadLetters > 0 || s.LagEvents < 500 || s.LagSeconds < 3600 ||
					!strings.Contains(s.Problem, test.problem) {
					t.Errorf("%+v", s)
				}
				if asked := c.asked(); asked > 4000 {
					t.Errorf("%d requests in 23 hours", asked)
				}
				c.answers(nil)
				time.Sleep(20 * time.Minute)
				c.check(k)
				if s := k.status(); s.LagEvents != 0 || s.LagSeconds != 0 || s.Held != 0 || s.Problem != "" {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A subscriber a thousand times too slow gets everything once; the backlog is in the journal, not in memory.
func TestSlow(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{Mode: event.Structured})
		c.answers(func(http.ResponseWriter, *http.Request, []cloudevents.Event) int {
			time.Sleep(10 * time.Second)
			return http.StatusNoContent
		})
		var nodes []string
		for n := range 1000 {
			nodes = append(nodes, fmt.Sprintf("n%d", n%50))
		}
		k.append(nodes...)
		time.Sleep(10 * time.Minute)
		if s := k.status(); s.LagSeconds < 500 || s.Held > 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Hour)
		c.check(k)
		if n := len(c.got()); n != 1000 {
			t.Errorf("%d deliveries of 1000 events", n)
		}
	})
}

// The center honours Retry-After, and the target's limit of requests per minute.
func TestAskedForPeace(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		c.options = allow("*", "30")
		k.add(deliver.Subscription{Mode: event.Structured})
		c.answers(func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) int {
			w.Header().Set("Retry-After", "1800")
			return http.StatusServiceUnavailable
		})
		k.append("x")
		time.Sleep(29 * time.Minute)
		if n := c.asked(); n != 1 {
			t.Errorf("%d requests within Retry-After", n)
		}
		c.answers(nil)
		time.Sleep(2 * time.Minute)
		k.append(slices.Repeat([]string{"x"}, 100)...)
		before := c.asked()
		time.Sleep(time.Minute)
		if n := c.asked() - before; n < 28 || n > 32 {
			t.Errorf("%d requests in a minute, 30 are permitted", n)
		}
		time.Sleep(5 * time.Minute)
		c.check(k)
	})
}

// A target that has not agreed to receive events gets none.
func TestHandshake(t *testing.T) {
	for name, options := range map[string]http.HandlerFunc{
		"says nothing": func(http.ResponseWriter, *http.Request) {},
		"another":      allow("other", ""),
		"refuses":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) },
		"no rate":      allow("*", "many"),
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
				c.options = options
				k.add(deliver.Subscription{})
				k.append("x")
				time.Sleep(time.Hour)
				if n := c.asked(); n > 0 || !strings.Contains(k.status().Problem, "asked by OPTIONS") {
					t.Errorf("%d requests; %+v", n, k.status())
				}
				c.mu.Lock()
				c.options = nil
				c.mu.Unlock()
				time.Sleep(10 * time.Minute)
				c.check(k)
			})
		})
	}
	settings := hooks()
	settings.Targets[0].NoHandshake = true
	simulate(t, settings, func(t *testing.T, k *kit, c *receiver) {
		c.options = func(http.ResponseWriter, *http.Request) { t.Error("it is asked all the same") }
		k.add(deliver.Subscription{})
		k.append("x")
		time.Sleep(time.Minute)
		c.check(k)
	})
}

// A target that takes no batches is sent single events, also after a restart: whether it says so, or answers a batch as if
// its events were wrong. One that takes no JSON gets binary mode.
func TestUnsupported(t *testing.T) {
	for status, mode := range map[int]event.Mode{http.StatusUnsupportedMediaType: event.Binary,
		http.StatusBadRequest: event.Structured, http.StatusUnprocessableEntity: event.Structured,
		http.StatusRequestEntityTooLarge: event.Structured} {
		simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
			c.answers(func(_ http.ResponseWriter, r *http.Request, _ []cloudevents.Event) int {
				media := r.Header.Get("Content-Type")
				if media == event.BatchMediaType || mode == event.Binary && media == event.MediaType {
					return status
				}
				return http.StatusNoContent
			})
			k.add(deliver.Subscription{})
			k.append("x", "y", "x")
			time.Sleep(time.Minute)
			c.check(k)
			if s := k.status(); s.NextMode != mode || s.Failed > 0 {
				t.Errorf("%d: %+v", status, s)
			}
			k.restart()
			before := c.asked()
			k.append("x")
			time.Sleep(time.Minute)
			if n := c.asked() - before; n != 1 {
				t.Errorf("%d: %d requests: what a target takes is forgotten", status, n)
			}
			c.check(k)
		})
	}
}

// An answer of 410 pauses a subscription, and its status shows why; after Resume it continues from the same place.
func TestGone(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.add(deliver.Subscription{})
		c.answers(status(http.StatusGone))
		k.append("x")
		time.Sleep(time.Hour)
		k.append("x", "y")
		time.Sleep(time.Hour)
		if s := k.status(); c.asked() != 1 || !strings.Contains(s.Paused, "410") || s.LagEvents != 3 || s.LagSeconds < 3600 {
			t.Errorf("%d requests, %+v", c.asked(), s)
		}
		k.restart()
		c.answers(nil)
		time.Sleep(time.Hour)
		if c.asked() != 1 {
			t.Error("a restart has resumed it")
		}
		must(t, k.Resume(t.Context(), me, "a"))
		time.Sleep(2 * time.Minute)
		c.check(k)
	})
}

// A subscriber gets the events that pass its filter and its expression, from the offset that it asked for.
func TestWanted(t *testing.T) {
	simulate(t, hooks(), func(t *testing.T, k *kit, c *receiver) {
		k.append("a", "b", "a", "c")
		k.add(deliver.Subscription{After: "1", Filter: journal.Filter{journal.Node: {"a", "b"}}, CEL: `data.n == 2`})
		k.append("b", "a", "c")
		time.Sleep(time.Minute)
		c.expect(t, "a-2", "b-2")
		must(t, k.Replay(t.Context(), me, "a", 0))
		time.Sleep(time.Minute)
		c.expect(t, "a-2", "b-2", "a-2", "b-2")
		if err := k.Replay(t.Context(), me, "a", 8); err == nil {
			t.Error("it waits for an offset that is not there")
		}
	})
}
