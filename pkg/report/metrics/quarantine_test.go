package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuarantined(t *testing.T) {
	m := New(Config{})
	if got := scrape(t, m, "nodeagent_quarantine"); len(got) > 0 {
		t.Errorf("before it was read: %v", got)
	}
	m.Quarantined(Quarantine{Bytes: 5, MaxBytes: 6, Entries: 4, Foreign: 1, Due: 2, Oldest: time.Minute})
	want := []string{
		"nodeagent_quarantine_bytes 5", "nodeagent_quarantine_due_entries 2", "nodeagent_quarantine_entries 4",
		"nodeagent_quarantine_foreign_entries 1", "nodeagent_quarantine_limit_bytes 6",
		"nodeagent_quarantine_oldest_seconds 60",
	}
	if diff := cmp.Diff(want, scrape(t, m, "nodeagent_quarantine")); diff != "" {
		t.Error(diff)
	}
}
