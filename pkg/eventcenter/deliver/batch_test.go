package deliver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// strict is a target that answers 400 to some requests.
type strict struct {
	refuses func(media string, ids []string) bool

	mu      sync.Mutex // guards the fields below
	taken   []string   // IDs
	batches [][]string // all requests in batch mode
}

func (s *strict) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}
	if r.Method == http.MethodOptions {
		answer.Header.Set("WebHook-Allowed-Origin", "*")
		return answer, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	media := r.Header.Get("Content-Type")
	if media != event.BatchMediaType {
		body = slices.Concat([]byte("["), body, []byte("]"))
	}
	var events []struct{ ID string }
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&events); err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if media == event.BatchMediaType {
		s.batches = append(s.batches, ids)
	}
	if s.refuses(media, ids) {
		answer.StatusCode = http.StatusBadRequest
	} else {
		s.taken = append(s.taken, ids...)
	}
	return answer, nil
}

// A batch with an event that the target refuses is sent event by event: the refused one is held back, and later events
// come in batches again, also after a restart.
func TestBatchAfterRefusedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &strict{refuses: func(_ string, ids []string) bool { return slices.Contains(ids, "bad-1") }}
		k := newKit(t, hooks(), target)
		k.add(deliver.Subscription{})
		k.append("a", "bad", "b", "a")
		time.Sleep(time.Minute)
		for range 2 {
			target.mu.Lock()
			target.batches = nil
			target.mu.Unlock()
			k.append("a", "b", "c")
			time.Sleep(time.Second)
			target.mu.Lock()
			together := slices.ContainsFunc(target.batches, func(ids []string) bool { return len(ids) == 3 })
			target.mu.Unlock()
			if s := k.status(); !together || s.NextMode != event.Batch || s.Held != 1 {
				t.Errorf("three events in a batch: %v; %+v", together, s)
			}
			k.stop()
			k.start()
		}
		k.stop()
		want := []string{"a-1", "a-2", "a-3", "a-4", "b-1", "b-2", "b-3", "c-1", "c-2"}
		if got := slices.Sorted(slices.Values(target.taken)); !slices.Equal(got, want) {
			t.Errorf("%v came, want %v", got, want)
		}
	})
}

// The batches before a refused one are not sent again.
func TestBatchBeforeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &strict{refuses: func(_ string, ids []string) bool { return slices.Contains(ids, "d") }}
		k := newKit(t, hooks(), target)
		k.add(deliver.Subscription{})
		var events []journal.Event
		for _, id := range []string{"a", "b", "c", "d"} { // two fit into a batch
			text := fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":%[1]q,"type":"t","data":"%0200000d"}`, id, 0)
			events = append(events, journal.Event{Source: id, ID: id, Type: "t", Node: id, JSON: text})
		}
		_, err := k.journal.Append(t.Context(), events)
		must(t, err)
		time.Sleep(time.Second)
		k.stop()
		if got := slices.Sorted(slices.Values(target.taken)); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("%v came", got)
		}
	})
}

// A target that answers 400 to every batch gets single events, and is sent a batch every few minutes.
func TestBatchAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &strict{refuses: func(media string, _ []string) bool { return media == event.BatchMediaType }}
		k := newKit(t, hooks(), target)
		k.add(deliver.Subscription{})
		for range 60 {
			k.append("a", "b")
			time.Sleep(time.Minute)
		}
		if s := k.status(); s.Failed > 0 || s.Held > 0 || s.Delivered != 120 || s.NextMode != event.Structured {
			t.Errorf("%+v", s)
		}
		must(t, k.Resume(t.Context(), deliver.Who{Name: "me"}, "a"))
		if s := k.status(); s.NextMode != event.Batch {
			t.Errorf("resumed in mode %s", s.NextMode)
		}
		k.stop()
		if n := len(target.batches); n < 10 || n > 60 { // at most two nodes and their batch every five minutes
			t.Errorf("%d batches in an hour", n)
		}
	})
}
