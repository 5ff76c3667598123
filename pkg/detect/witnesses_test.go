package detect

import (
	"errors"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// TestWitnessesThatCount: what happened before a check began to count is nobody's but the kernel log's to tell. What an
// earlier run of the agent in the same boot has watched is not told again.
func TestWitnessesThatCount(t *testing.T) {
	const check = "oom-kills"
	witnesses := func() *StateSources {
		w := &StateSources{}
		w.Enable([]Check{{ID: check, CounterBased: true}})
		return w
	}
	look := func(up time.Duration, err error) finding.Observation {
		return finding.Observation{Check: check, At: finding.Timestamp{Boot: "a", SinceBoot: up}, Err: err}
	}
	first := witnesses()
	first.Observe(look(9*time.Minute, errors.New("not yet")))
	first.Observe(look(10*time.Minute, nil))
	first.Observe(look(20*time.Minute, nil))
	memory := mapMemory{}
	first.Save(memory, finding.Timestamp{Boot: "a", SinceBoot: 21 * time.Minute})

	second := witnesses()
	second.Restore(memory, "a")
	second.Observe(look(30*time.Minute, nil))
	second.Save(memory, finding.Timestamp{Boot: "a", SinceBoot: 31 * time.Minute})
	third := witnesses()
	third.Restore(memory, "a")
	third.Observe(look(40*time.Minute, nil))
	third.Save(memory, finding.Timestamp{Boot: "a", SinceBoot: 41 * time.Minute})
	fourth := witnesses()
	fourth.Restore(memory, "a")
	fourth.Save(memory, finding.Timestamp{Boot: "a", SinceBoot: 42 * time.Minute}) // it has not looked
	fifth := witnesses()
	fifth.Restore(memory, "a")
	fifth.Observe(look(50*time.Minute, nil))
	rebooted := witnesses()
	rebooted.Restore(memory, "b")
	rebooted.Observe(look(30*time.Minute, nil))

	for name, test := range map[string]struct {
		w    *StateSources
		at   time.Duration
		able bool
	}{
		"before the first look":             {first, 9 * time.Minute, false},
		"after it":                          {first, 11 * time.Minute, true},
		"no look yet":                       {witnesses(), time.Minute, true},
		"before the first run's first look": {second, 9 * time.Minute, false},
		"in the first run":                  {second, 15 * time.Minute, true},
		"between the runs":                  {second, 25 * time.Minute, false},
		"in the second run":                 {second, 35 * time.Minute, true},
		"two runs ago":                      {third, 15 * time.Minute, true},
		"between the runs, one run later":   {third, 25 * time.Minute, false},
		"and a few runs later":              {fifth, 25 * time.Minute, false},
		"while a run had not looked":        {fifth, 45 * time.Minute, false},
		"in the third run":                  {fifth, 40 * time.Minute, true},
		"another boot's times":              {rebooted, 15 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.w.CanConfirm(check, test.at, time.Hour); got != test.able {
				t.Errorf("able is %v, want %v", got, test.able)
			}
		})
	}
}

// TestFewSpans: of an agent that is started again all the time, the long gaps stay.
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

// mapMemory is a Memory of the test's own.
type mapMemory map[string][]byte

func (m mapMemory) Load(key string) ([]byte, bool) { data, ok := m[key]; return data, ok }
func (m mapMemory) Save(key string, data []byte)   { m[key] = data }
