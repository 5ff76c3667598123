package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Ages keep growing between passes, and an incomplete pass does not reset the age of the last complete one.
func TestInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		prefixes := []string{"nodeagent_leftovers", "nodeagent_inspection", "nodeagent_pods"}
		check := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, scrape(t, m, prefixes...)); diff != "" {
				t.Error(diff)
			}
		}
		check(`nodeagent_pods_ended_total 0`, `nodeagent_pods_left_over_total 0`)
		m.Inspected(Inspection{Complete: true, Oldest: map[string]time.Duration{"mount": time.Hour},
			Bytes: map[string]uint64{"pod-logs": 7}, Ended: 3, Left: 1})
		time.Sleep(time.Minute)
		check(`nodeagent_inspection_complete_age_seconds 60`, `nodeagent_leftovers_bytes{kind="pod-logs"} 7`,
			`nodeagent_leftovers_oldest_seconds{kind="mount"} 3660`, `nodeagent_pods_ended_total 3`,
			`nodeagent_pods_left_over_total 1`)
		m.Inspected(Inspection{Ended: 1})
		time.Sleep(time.Minute)
		check(`nodeagent_inspection_complete_age_seconds 120`, `nodeagent_pods_ended_total 4`,
			`nodeagent_pods_left_over_total 1`)
	})
}
