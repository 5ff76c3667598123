package agent

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A changed state is written at once. Unchanged states are written every five minutes, all checks together: a hundred
// checks at rest wait for the disk once a minute.
func TestStateWriterWritesSeldomAtRest(t *testing.T) {
	s := newSaver(nil, slog.New(slog.DiscardHandler))
	writes, saved := 0, map[string]int{}
	run := func(up time.Duration, check string, now *finding.CheckState) {
		s.enqueue(check, &finding.CheckState{Status: finding.StatusHealthy}, now, finding.Timestamp{SinceBoot: up})
		select {
		case <-s.ready:
			writes++
			for waiting := range s.waiting {
				saved[waiting]++
			}
			clear(s.waiting)
		default:
		}
	}
	const checks, minutes = 100, 60
	for minute := range minutes {
		for n := range checks {
			up := time.Hour + time.Duration(minute)*time.Minute + time.Duration(n)*time.Minute/checks
			run(up, fmt.Sprint(n), &finding.CheckState{Status: finding.StatusHealthy})
		}
	}
	if writes > minutes {
		t.Errorf("%d writes in %d minutes in which nothing has changed", writes, minutes)
	}
	for n := range checks {
		if got := saved[fmt.Sprint(n)]; got < minutes/6-1 {
			t.Errorf("the state of check %d was saved %d times in %d minutes", n, got, minutes)
		}
	}
	before := writes
	run(3*time.Hour, "0", &finding.CheckState{Status: finding.StatusHealthy})
	run(3*time.Hour+time.Second, "1", &finding.CheckState{Status: finding.StatusUnknown})
	if writes != before+2 {
		t.Error("a change waits")
	}
}
