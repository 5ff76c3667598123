package agent

import (
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// deletions follows pods from pass to pass: how many end, and how many of those leave objects behind. It starts from
// zero with the agent.
type deletions struct {
	living map[string]bool // UIDs that a witness knew in the last complete pass
	ended  map[string]bool // UIDs of ended pods of which objects still exist
}

// observe returns how many pods have ended since the last pass, and how many ended pods are now proven to have left
// objects behind. An incomplete pass changes no count.
func (d *deletions) observe(report object.Report, complete bool) (ended, left int) {
	if !complete {
		return 0, 0
	}
	living, here, proven := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range report.Objects {
		o := &report.Objects[i]
		if o.Pod.UID == "" {
			continue
		}
		here[o.Pod.UID] = true
		switch {
		case o.Verdict == object.Live:
			living[o.Pod.UID] = true
		case o.Verdict == object.Leftover && !kinds.Of(o.Kind).Minor():
			proven[o.Pod.UID] = true
		}
	}
	still := map[string]bool{}
	note := func(uid string) {
		switch {
		case living[uid]: // known again
		case proven[uid]:
			left++
		case here[uid]:
			still[uid] = true
		}
	}
	for uid := range d.ended {
		note(uid)
	}
	for uid := range d.living {
		if !living[uid] {
			ended++
			note(uid)
		}
	}
	d.living, d.ended = living, still
	return ended, left
}

// measure returns the numbers of a pass.
func measure(report object.Report, complete bool, now finding.Timestamp) metrics.Inspection {
	m := metrics.Inspection{Complete: complete, Oldest: map[string]time.Duration{}, Bytes: map[string]uint64{}}
	for i := range report.Objects {
		o := &report.Objects[i]
		if o.Verdict != object.Leftover && o.Verdict != object.Unowned {
			continue
		}
		kind := string(o.Kind)
		m.Oldest[kind] = max(m.Oldest[kind], now.Since(o.FirstSeen))
		if bytes, err := strconv.ParseUint(o.Facts["bytes"], 10, 64); err == nil {
			m.Bytes[kind] += bytes
		}
	}
	return m
}
