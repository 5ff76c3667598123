package inspect

import (
	"maps"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// key is the key of an object in the history.
func key(o *Object) string { return string(o.Kind) + "/" + o.ID }

// sighting returns what is known of o before this pass: nothing, if it is another object now, was never seen, or was
// last seen before the machine started. The first of all sightings is now; one in which no pass counted was none.
func (h History) sighting(o *Object, now finding.Timestamp) Sighting {
	s, ok := h[key(o)]
	if !ok || s.Passes == 0 || !sameBoot(s.First, now) || s.First.SinceBoot > now.SinceBoot ||
		!maps.Equal(s.Identity, o.Identity) ||
		losesOwner(o.Kind) && s.Pod.UID != o.Pod.UID { // no witness was asked for this pod then
		return Sighting{Identity: maps.Clone(o.Identity), First: now, Last: now}
	}
	return s
}

// addPass counts a pass in which o was there and denied by all local witnesses, who could be believed. Two passes at one
// moment are one.
func (s Sighting) addPass(now finding.Timestamp) Sighting {
	if s.Passes == 0 || now.SinceBoot > s.Last.SinceBoot {
		s.Passes++
	}
	s.Last = now
	return s
}

// addDenial notes a list of the apiserver without the pod. Only the first and the last are kept: what counts is that they
// are apart.
func (s Sighting) addDenial(at finding.Timestamp) Sighting {
	switch n := len(s.Denials); {
	case n == 0:
		s.Denials = []finding.Timestamp{at}
	case at.SinceBoot > s.Denials[n-1].SinceBoot:
		s.Denials = []finding.Timestamp{s.Denials[0], at}
	}
	return s
}
