package detect

import (
	"errors"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// TestSourcesThatCount: only kernel-log can report events from before a check began to count. Events that a check
// watched in an earlier run of the agent, in the same boot, are not reported again.
func TestSourcesThatCount(t *testing.T) {
	const check = "oom-kills"
	sources := func() *StateSources {
		w := &StateSources{}
		w.Enable([]Check{{ID: check, CounterBased: true}})
		return w
	}
	observation := func(up time.Duration, err error) finding.Observation {
		return finding.Observation{Check: check, At: finding.Timestamp{Boot: "a", SinceBoot: up}, Err: err}
	}
	first := sources()
	first.Observe(observation(9*time.Minute, errors.New("not yet")))
	first.Observe(observation(10*time.Minute, nil))
	first.Observe(observation(20*time.Minute, nil))
	store := mapStore{}
	first.Save(store, finding.Timestamp{Boot: "a", SinceBoot: 21 * time.Minute})

	second := sources()
	second.Restore(store, "a")
	second.Observe(observation(30*time.Minute, nil))
	second.Save(store, finding.Timestamp{Boot: "a", SinceBoot: 31 * time.Minute})
	third := sources()
	third.Restore(store, "a")
	third.Observe(observation(40*time.Minute, nil))
	third.Save(store, finding.Timestamp{Boot: "a", SinceBoot: 41 * time.Minute})
	fourth := sources()
	fourth.Restore(store, "a")
	fourth.Save(store, finding.Timestamp{Boot: "a", SinceBoot: 42 * time.Minute}) // it has no observation
	fifth := sources()
	fifth.Restore(store, "a")
	fifth.Observe(observation(50*time.Minute, nil))
	rebooted := sources()
	rebooted.Restore(store, "b")
	rebooted.Observe(observation(30*time.Minute, nil))

	for name, test := range map[string]struct {
		w    *StateSources
		at   time.Duration
		able bool
	}{
		"before the first observation":             {first, 9 * time.Minute, false},
		"after it":                                 {first, 11 * time.Minute, true},
		"no observation yet":                       {sources(), time.Minute, true},
		"before the first run's first observation": {second, 9 * time.Minute, false},
		"in the first run":                         {second, 15 * time.Minute, true},
		"between the runs":                         {second, 25 * time.Minute, false},
		"in the second run":                        {second, 35 * time.Minute, true},
		"two runs ago":                             {third, 15 * time.Minute, true},
		"between the runs, one run later":          {third, 25 * time.Minute, false},
		"and a few runs later":                     {fifth, 25 * time.Minute, false},
		"while a run had not observed anything":    {fifth, 45 * time.Minute, false},
		"in the third run":                         {fifth, 40 * time.Minute, true},
		"another boot's times":                     {rebooted, 15 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.w.CanConfirm(check, test.at, time.Hour); got != test.able {
				t.Errorf("able is %v, want %v", got, test.able)
			}
		})
	}
}

// TestFewSpans: if the agent restarts all the time, the long gaps are kept.
func TestFewSpans(t *testing.T) {
	var spans []watchSpan
	for i := range time.Duration(100) {
		gap := time.Second
		if i%10 == 0 {
			gap = time.Minute
		}
		from := i*time.Hour + gap
		spans = fewSpans(append(spans, watchSpan{from, (i + 1) * time.Hour}))
	}
	past := pastWatch{Watched: map[string][]watchSpan{"a": spans}}
	if len(spans) != maxWatchSpans || past.watched("a", 90*time.Hour+30*time.Second) ||
		past.watched("a", 10*time.Hour+30*time.Second) || !past.watched("a", 15*time.Hour) {
		t.Errorf("%d spans: %v", len(spans), spans)
	}
}
