// Package health judges a cluster by its indicators. It is pure.
package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

// Level is the health of a cluster.
type Level string

// The levels, from the best to the worst. Unknown means that tracecenter cannot see the cluster.
const (
	Healthy Level = "Healthy"
	Warning Level = "Warning"
	Fatal   Level = "Fatal"
	Unknown Level = "Unknown"
)

const (
	fatalSuccess, warnSuccess = 0.90, 0.99
	fatalNodes                = 0.20 // share of faulty nodes

	// Hold is how long a better level must last before it replaces a worse one.
	Hold = 2 * time.Minute
	// Trend is the time over which counts are compared.
	Trend = 10 * time.Minute
)

// Counts are numbers whose rise is a sign.
type Counts struct {
	Nodes       int `json:"nodes"`
	FaultyNodes int `json:"faultyNodes"`
	Leftovers   int `json:"leftovers"` // pods that stay in Terminating
}

// Inputs are the observations of one moment.
type Inputs struct {
	Blind     string         // why the cluster cannot be seen; empty: it can
	Creation  *sli.Indicator // of the last 5 minutes; nil: no acts
	Offline   [][2]string    // components with their instances
	Now, Then Counts         // Then: one Trend ago
	Compared  bool           // Then is known
	Alerts    []Alert
}

// Alert is a firing alert.
type Alert struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
}

// Cause is a reason for a level.
type Cause struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
}

// Judge returns the level of a moment and its causes, the worst first.
func Judge(in Inputs) (Level, []Cause) {
	if in.Blind != "" {
		return Unknown, []Cause{{Unknown, in.Blind}}
	}
	var causes []Cause
	add := func(isFatal bool, format string, args ...any) {
		c := Cause{Warning, fmt.Sprintf(format, args...)}
		if isFatal {
			c.Level = Fatal
		}
		causes = append(causes, c)
	}
	if in.Creation != nil && in.Creation.Success != nil && *in.Creation.Success < warnSuccess {
		add(*in.Creation.Success < fatalSuccess, "%.1f %% of %d creations were in time in 5 minutes", 100**in.Creation.Success,
			in.Creation.Samples)
	}
	for _, c := range in.Offline {
		add(c[0] == "apiserver", "%s %s is offline", c[0], c[1])
	}
	if faulty := in.Now.FaultyNodes; in.Now.Nodes > 0 && float64(faulty) > fatalNodes*float64(in.Now.Nodes) {
		add(true, "%d of %d nodes are faulty", faulty, in.Now.Nodes)
	} else if in.Compared && faulty > in.Then.FaultyNodes {
		add(false, "faulty nodes rose from %d to %d in %v", in.Then.FaultyNodes, faulty, Trend)
	}
	if in.Compared && in.Now.Leftovers > in.Then.Leftovers {
		add(false, "pods that stay in Terminating rose from %d to %d in %v", in.Then.Leftovers, in.Now.Leftovers, Trend)
	}
	for _, a := range in.Alerts {
		if a.Level == Fatal || a.Level == Warning {
			add(a.Level == Fatal, "alert %s is firing", a.Name)
		}
	}
	if len(causes) == 0 {
		return Healthy, nil
	}
	slices.SortStableFunc(causes, func(a, b Cause) int { return rank(b.Level) - rank(a.Level) })
	return causes[0].Level, causes
}

// Tracker holds the level of a cluster: a worse level counts at once, a better one after Hold.
type Tracker struct {
	level  Level
	since  time.Time
	better time.Time // since when each judgement was better than level; zero: it is not
	counts []sample
}

type sample struct {
	at time.Time
	Counts
}

// State is the health of a cluster.
type State struct {
	Level  Level     `json:"level"`
	Since  time.Time `json:"since"`
	Causes []Cause   `json:"causes,omitempty"` // of the present moment
	Counts
}

func rank(l Level) int {
	return map[Level]int{Healthy: 0, Warning: 1, Fatal: 2}[l]
}

// Take judges a moment, and compares its counts with those of one Trend ago.
func (t *Tracker) Take(in Inputs, now time.Time) State {
	for len(t.counts) > 1 && now.Sub(t.counts[1].at) >= Trend {
		t.counts = t.counts[1:]
	}
	if len(t.counts) > 0 && now.Sub(t.counts[0].at) >= Trend {
		in.Then, in.Compared = t.counts[0].Counts, true
	}
	if len(t.counts) == 0 || now.Sub(t.counts[len(t.counts)-1].at) >= time.Minute {
		t.counts = append(t.counts, sample{now, in.Now})
	}
	level, causes := Judge(in)
	atOnce := t.level == "" || level == Unknown || t.level == Unknown || rank(level) >= rank(t.level)
	switch {
	case !atOnce && t.better.IsZero():
		t.better = now
	case atOnce || now.Sub(t.better) >= Hold:
		if t.better = (time.Time{}); level != t.level {
			t.level, t.since = level, now
		}
	}
	return State{Level: t.level, Since: t.since, Causes: causes, Counts: in.Now}
}
