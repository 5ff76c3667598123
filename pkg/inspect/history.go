package inspect

import (
	"maps"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// key is the key of an object in the history.
func key(o *Object) string { return string(o.Kind) + "/" + o.ID }

// seen returns the history's entry of o from earlier passes. It starts anew if the object was replaced, was never
// seen, was last seen in another boot, or if no earlier pass counted; its identity is then o's own.
func (h History) seen(o *Object, now finding.Timestamp) Sighting {
	if len(h) == 0 { // as on most nodes: no key is made
		return Sighting{Identity: o.Identity, First: now, Last: now}
	}
	s, ok := h[key(o)]
	if !ok || s.Passes == 0 || !sameBoot(s.First, now) || s.First.SinceBoot > now.SinceBoot ||
		!maps.Equal(s.Identity, o.Identity) ||
		losesOwner(o.Kind) && s.Pod.UID != o.Pod.UID { // no witness was asked about this pod then
		return Sighting{Identity: o.Identity, First: now, Last: now}
	}
	return s
}

// addPass counts a pass in which the object existed and all local witnesses were trusted and denied it. Two passes at
// the same time count once.
func (s Sighting) addPass(now finding.Timestamp) Sighting {
	if s.Passes == 0 || now.SinceBoot > s.Last.SinceBoot {
		s.Passes++
	}
	s.Last = now
	return s
}

// addDenial records a list of the apiserver without the pod. Only the first and the last are kept: the time between
// them counts.
func (s Sighting) addDenial(at finding.Timestamp) Sighting {
	switch n := len(s.Denials); {
	case n == 0:
		s.Denials = []finding.Timestamp{at}
	case at.SinceBoot > s.Denials[n-1].SinceBoot:
		s.Denials = []finding.Timestamp{s.Denials[0], at}
	}
	return s
}
