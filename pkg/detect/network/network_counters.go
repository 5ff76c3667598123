package network

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// netWindow remembers counters for a while, so that what happened within it can be told although looks come at any
// distance: a check that is woken looks twice within a second. Times are since boot; a jump of the wall clock means
// nothing.
type netWindow struct {
	span    time.Duration // how far back it reaches
	samples []netSample   // the oldest first, at least netSampleGap apart
}

type netSample struct {
	at     time.Duration
	values map[string]uint64
}

// netSampleGap bounds how many samples there are.
const netSampleGap = 15 * time.Second

// add takes in the counters of now. A counter that is less than it was has been reset (a device came back, a module was
// loaded anew) or has wrapped: what was known of it before is forgotten.
func (w *netWindow) add(at time.Duration, values map[string]uint64) {
	for i := range w.samples {
		for key, old := range w.samples[i].values {
			if now, ok := values[key]; !ok || now < old {
				delete(w.samples[i].values, key)
			}
		}
	}
	// The one sample at or before the window's begin is kept: the difference to it covers the whole window.
	for len(w.samples) > 1 && at-w.samples[1].at >= w.span {
		w.samples = slices.Delete(w.samples, 0, 1)
	}
	if n := len(w.samples); n > 1 && at-w.samples[n-2].at < netSampleGap {
		w.samples[n-1] = netSample{at, values} // between two samples of a kind, only the newest counts
		return
	}
	w.samples = append(w.samples, netSample{at, values})
}

// rise returns by how much a counter rose within the window, and in which time. It is false when nothing is known: at
// the first look, or right after a reset.
func (w *netWindow) rise(key string) (by uint64, in time.Duration, ok bool) {
	if len(w.samples) < 2 {
		return 0, 0, false
	}
	last := w.samples[len(w.samples)-1]
	now, ok := last.values[key]
	if !ok {
		return 0, 0, false
	}
	for _, s := range w.samples[:len(w.samples)-1] {
		if old, known := s.values[key]; known {
			return now - old, last.at - s.at, true
		}
	}
	return 0, 0, false
}

// fast returns a counter's rise within the window and its rate in one second. Below least of time it is not known: a
// burst is no rate.
func (w *netWindow) fast(key string, least time.Duration) (by uint64, perSecond float64, ok bool) {
	by, in, ok := w.rise(key)
	if !ok || in < least {
		return 0, 0, false
	}
	return by, float64(by) / in.Seconds(), true
}

// netRate is one rule of a check that judges counters by their rate.
type netRate struct {
	key    string
	reason string
	least  float64 // in one second, over the window; half of it keeps what was raised
	of     string  // the counter of what went well; empty for none
	share  float64 // the least share of both together
	text   string  // for people, after the rate
	info   bool    // worth knowing only
}

// judgeRate returns what a rule says: found, and whether it only keeps what was raised.
func (w *netWindow) judgeRate(r netRate, least time.Duration) (text string, marginal, found bool) {
	by, rate, ok := w.fast(r.key, least)
	if !ok || rate < r.least/2 || by == 0 {
		return "", false, false
	}
	marginal = rate < r.least
	text = fmt.Sprintf("%s %s (%d in all)", netNumber(rate)+"/s", r.text, by)
	if rate < 0.1 {
		_, in, _ := w.rise(r.key)
		text = fmt.Sprintf("%d %s within %s", by, r.text, in.Round(time.Second))
	}
	if r.of != "" {
		all, _, known := w.rise(r.of)
		if !known {
			return "", false, false
		}
		// The other counter is of those that went well. It is 0 where none did: a program that reads nothing at all.
		share := float64(by) / float64(all+by)
		if share < r.share/2 {
			return "", false, false
		}
		marginal = marginal || share < r.share
		text = fmt.Sprintf("%s, %s %% of all", text, netNumber(100*share))
	}
	return text, marginal, true
}

// netNumber renders a rate or a percentage: one digit behind the point below ten.
func netNumber(f float64) string {
	if f < 10 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// netFault is one of several things wrong with one subject.
type netFault struct {
	reason   string
	text     string
	info     bool
	marginal bool
}

// orderFaults puts what names the finding first: what is certain before what only keeps a finding, warnings before
// the rest.
func orderFaults(faults []netFault) []netFault {
	rank := func(f netFault) int {
		n := 0
		if f.info {
			n++
		}
		if f.marginal {
			n += 2
		}
		return n
	}
	slices.SortStableFunc(faults, func(a, b netFault) int { return cmp.Compare(rank(a), rank(b)) })
	return faults
}

// netFinding makes one finding about the node of all that is wrong: the gravest names it, all are told.
func netFinding(check string, h *host.Host, faults []netFault, facts map[string]string) []finding.Finding {
	if len(faults) == 0 {
		return nil
	}
	first := orderFaults(faults)[0]
	f := finding.Finding{
		Check: check, Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Reason: first.reason, BelowRaise: first.marginal, Facts: facts,
	}
	if first.info {
		f.Severity = finding.Info
	}
	texts := make([]string, 0, len(faults))
	for _, fault := range faults {
		texts = append(texts, fault.text)
	}
	f.Message = strings.Join(texts, "; ")
	return []finding.Finding{f}
}

// judgeRates returns what several rules say.
func (w *netWindow) judgeRates(rules []netRate) (faults []netFault) {
	for _, r := range rules {
		if text, marginal, found := w.judgeRate(r, errorLeast); found {
			faults = append(faults, netFault{reason: r.reason, text: text, info: r.info, marginal: marginal})
		}
	}
	return faults
}
