package object

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
)

// Sighting is the record kept between passes about an object that no witness knows.
type Sighting struct {
	Identity Identity            `json:"identity"`
	First    finding.Timestamp   `json:"first"`
	Last     finding.Timestamp   `json:"last"`
	Passes   int                 `json:"passes"`            // in which every witness could be trusted
	Denials  []finding.Timestamp `json:"denials,omitempty"` // times of fresh LISTs of the apiserver without its pod
	Named    NameAnswer          `json:"named,omitzero"`    // only for a running pod: see PodKey

	// The owner, for objects that can outlive the source of their pod's name: see LosesOwner.
	Pod       Pod    `json:"pod,omitzero"`
	SandboxID string `json:"sandboxID,omitempty"`
}

// History holds sightings by kind and ID, and those of running pods by PodKey. It survives a restart of the agent but
// not of the machine: a boot starts a new history.
type History map[string]Sighting

// Key is the key of an object in the history.
func Key(o *Object) string { return string(o.Kind) + "/" + o.ID }

// Seen returns the history's entry of o from earlier passes. It starts anew if the object was replaced, was never
// seen, was last seen in another boot, or if no earlier pass counted; its identity is then o's own.
func (h History) Seen(o *Object, now finding.Timestamp) Sighting {
	if len(h) == 0 { // as on most nodes: no key is made
		return Sighting{Identity: o.Identity, First: now, Last: now}
	}
	s, ok := h[Key(o)]
	if !ok || s.Passes == 0 || !SameBoot(s.First, now) || s.First.SinceBoot > now.SinceBoot ||
		!s.Identity.Equal(o.Identity) ||
		LosesOwner(o.Kind) && s.Pod.UID != o.Pod.UID { // no witness was asked about this pod then
		return Sighting{Identity: o.Identity, First: now, Last: now}
	}
	return s
}

// AddPass counts a pass in which the object existed and all local witnesses were trusted and denied it. Two passes at
// the same time count once.
func (s Sighting) AddPass(now finding.Timestamp) Sighting {
	if s.Passes == 0 || now.SinceBoot > s.Last.SinceBoot {
		s.Passes++
	}
	s.Last = now
	return s
}

// AddDenial records a list of the apiserver without the pod. Only the first and the last are kept: the time between
// them counts.
func (s Sighting) AddDenial(at finding.Timestamp) Sighting {
	switch n := len(s.Denials); {
	case n == 0:
		s.Denials = []finding.Timestamp{at}
	case at.SinceBoot > s.Denials[n-1].SinceBoot:
		s.Denials = []finding.Timestamp{s.Denials[0], at}
	}
	return s
}

// StrongLasts is how long the answer about a pod by name counts for the stronger proof. A release asks again: see
// Inspector.About.
const StrongLasts = time.Hour

// NamedKey is the key in the history of the apiserver's answer about a pod that the breaker holds. No kind of object has
// such keys.
func NamedKey(uid string) string { return "named/" + uid }

// Sighting returns the history's entry about an object; zero if there is none.
func (h History) Sighting(o Object) Sighting { return h[Key(&o)] }

// OfRunningPod returns the history's entry about a suspect pod with a running container; zero if there is none.
func (h History) OfRunningPod(uid string) Sighting { return h[PodKey(uid)] }

// Round makes a duration readable.
func Round(d time.Duration) time.Duration { return d.Round(time.Second) }

// SameBoot reports whether two timestamps can be compared.
func SameBoot(a, b finding.Timestamp) bool { return a.Boot == b.Boot }

// KindOf returns the kind in a key of the history; for a key of another type, a kind that does not exist.
func KindOf(key string) Kind {
	kind, _, _ := strings.Cut(key, "/")
	return Kind(kind)
}

const gateKind = "closed"

// GateKey is the key in the history of the time since when a gate is closed. No kind of object has such keys.
func GateKey(gate string) string { return gateKind + "/" + gate }

// Memories returns how many entries of a history wait for no pass: pods' labels and annotations, and closed gates.
func (h History) Memories() int {
	n := 0
	for key := range h {
		if _, ok := optout.UIDOf(key); ok || KindOf(key) == gateKind {
			n++
		}
	}
	return n
}

// NameAnswer is the apiserver's answer to a request for a pod by name. It is a proof only if Gone or Alive is set.
type NameAnswer struct {
	At    finding.Timestamp `json:"at"`
	Gone  bool              `json:"gone,omitempty"`  // there is none, or another pod has that name
	Alive bool              `json:"alive,omitempty"` // it exists
	Why   string            `json:"why"`
}

// AskAgain is how often one pod is requested by name, and for how long an answer is valid.
const AskAgain = 10 * time.Minute

// Holds reports whether an answer is still valid.
func (a NameAnswer) Holds(now finding.Timestamp) bool {
	return !a.At.IsZero() && SameBoot(a.At, now) && a.At.SinceBoot <= now.SinceBoot && now.Since(a.At) < AskAgain
}

// PodKey is the key of a running pod in the history. No kind of object has such keys.
func PodKey(uid string) string { return "pod/" + uid }

// PodSighting is the history's entry about a running pod.
func (h History) PodSighting(uid string, now finding.Timestamp) Sighting {
	s, ok := h[PodKey(uid)]
	if !ok || !SameBoot(s.First, now) || s.First.SinceBoot > now.SinceBoot {
		return Sighting{First: now, Last: now}
	}
	return s
}
