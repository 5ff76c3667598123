package eventcenter_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/eventtest"
)

// A receiver that rejects each event is not sent one after another about the rejected ones.
func TestAllRejected(t *testing.T) {
	subtest(t, "all", func(t *testing.T, k *kit) {
		k.c.Answers(eventtest.Status(http.StatusBadRequest))
		k.start()
		k.find("One", "Two", "Three")
		time.Sleep(time.Hour)
		if n := k.c.Asked(); n > 300 {
			t.Errorf("%d requests in an hour", n)
		}
		k.stop()
	})
}

// A receiver that refuses batches by 400 or 422, and names no event, gets each event in structured mode. Batches are sent
// again afterwards: one event may have been the reason.
func TestBatchRefused(t *testing.T) {
	for _, code := range []int{http.StatusBadRequest, http.StatusUnprocessableEntity} {
		subtest(t, fmt.Sprint(code), func(t *testing.T, k *kit) {
			batches, takesBatches := 0, false
			k.c.Answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
				isBatch := request.Header.Get("Content-Type") == event.BatchMediaType
				if isBatch {
					batches++
				}
				if isBatch && !takesBatches {
					w.WriteHeader(code)
				}
				return isBatch && !takesBatches
			})
			k.start()
			k.find("One", "Two", "Three")
			time.Sleep(30 * time.Second)
			k.c.Lock() // as while it answers
			takesBatches, batches = true, 0
			k.c.Unlock()
			k.find("One", "Two", "Three", "Four")
			k.end(time.Minute, "One", "Two", "Three", "Four")
			if batches == 0 || k.r.Stats().Quarantined != 0 {
				t.Errorf("%d batches after the receiver took them, %+v", batches, k.r.Stats())
			}
		})
	}
}

// An event that the center rejects by name is quarantined, reported and counted; all others arrive. If the center names
// none, the reporter finds the culprit.
func TestRejected(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, bad int){
		"named": func(w http.ResponseWriter, bad int) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			const names = `{"rejected":[{"index":%d,"reason":"no such thing"},{"index":-1},{"index":99999}]}`
			fmt.Fprintf(w, names, bad)
		},
		"not named": func(w http.ResponseWriter, _ int) { http.Error(w, "bad", http.StatusBadRequest) },
		"too large": func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusRequestEntityTooLarge) },
		"endless": func(w http.ResponseWriter, _ int) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.CopyN(w, neverEnding{}, 10<<20)
		},
	} {
		subtest(t, name, func(t *testing.T, k *kit) {
			k.c.Answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
				bad := slices.IndexFunc(events, func(e cloudevents.Event) bool {
					return strings.Contains(string(e.Data()), `"reason":"Reason07"`)
				})
				rejected := bad >= 0 && events[0].Type() != string(event.NodeSnapshot)
				if rejected {
					answer(w, bad)
				}
				return rejected
			})
			var reasons []string
			for i := range 20 {
				reasons = append(reasons, fmt.Sprintf("Reason%02d", i))
			}
			k.start()
			k.find(reasons...)
			time.Sleep(10 * time.Minute)
			k.check()
			want := slices.Delete(reasons, 7, 8)
			if diff := cmp.Diff(want, slices.Sorted(slices.Values(k.c.lines(event.FaultRaised)))); diff != "" {
				t.Error(diff)
			}
			for range 2 { // also after a restart
				if stats := k.r.Stats(); stats.Quarantined != 1 {
					t.Errorf("%+v, want one that is set aside", stats)
				}
				k.stop()
				k.start()
				time.Sleep(time.Minute)
			}
		})
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }
