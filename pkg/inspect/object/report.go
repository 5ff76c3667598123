package object

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Verdict is the result of an inspection for an object.
type Verdict string

// The verdicts.
const (
	Live      Verdict = "live"      // a witness knows its pod, or it may just be starting
	Leftover  Verdict = "leftover"  // every witness agrees, all gates are open, seen often and long enough
	Candidate Verdict = "candidate" // no witness knows its pod, but it is not proven yet
	Unknown   Verdict = "unknown"   // a required witness did not answer
	Unowned   Verdict = "unowned"   // everything was read and no source names its pod: reported, never touched
	Foreign   Verdict = "foreign"   // does not belong to a pod of this kubelet: never touched
)

// Assessment is an object with its verdict and the reasons for it. Its JSON form is a contract.
type Assessment struct {
	Object
	Verdict   Verdict           `json:"verdict"`
	Why       string            `json:"why"`
	Witnesses map[string]Answer `json:"witnesses"`         // apiserver, kubelet, runtime, containerd …
	Running   bool              `json:"running,omitempty"` // its pod has a running container: see running.go
	FirstSeen finding.Timestamp `json:"firstSeen,omitzero"`
	Passes    int               `json:"passes,omitempty"`
	Release   string            `json:"release,omitempty"` // what a release would do
	// PassesBreaker: it is a leftover although the gate against mass orphaning is closed; see breaker.go
	PassesBreaker bool `json:"passesBreaker,omitempty"`
}

// Find returns the object of a kind with an ID.
func Find(objects []Assessment, kind Kind, id string) (Assessment, bool) {
	at := slices.IndexFunc(objects, func(o Assessment) bool { return o.Kind == kind && o.ID == id })
	if at < 0 {
		return Assessment{}, false
	}
	return objects[at], true
}

// Gate is a condition on the whole node. While one is closed, no object is a leftover, except those that a stronger
// proof takes through the gate against mass orphaning.
type Gate struct {
	Name  string            `json:"name"`
	Open  bool              `json:"open"`
	Why   string            `json:"why"`
	Since finding.Timestamp `json:"since,omitzero"`  // closed since, as far as passes without a gap show
	Opens string            `json:"opens,omitempty"` // by whom, and when
}

// Failure is a source that could not be read.
type Failure struct {
	What   string          `json:"what"`
	Error  string          `json:"error"`
	Access *finding.Access `json:"access,omitempty"` // the missing access, if that is the cause
}

func FailureOf(what string, err error) Failure {
	return Failure{what, err.Error(), finding.AccessOf(err)}
}

// Report is the result of one pass. Its JSON form is a contract.
type Report struct {
	At      finding.Timestamp `json:"at"`
	Objects []Assessment      `json:"objects"`
	Gates   []Gate            `json:"gates"`
	Errors  []Failure         `json:"errors"`
	Notes   []string          `json:"notes,omitempty"` // conditions that make proof harder on this node, once each
}

// Suspicious returns the report without the objects that belong to living pods or to no pod of this kubelet.
func (r Report) Suspicious() Report {
	all := r.Objects
	r.Objects = []Assessment{} // of its own: the others' memory is freed
	for i := range all {
		if all[i].Verdict != Live && all[i].Verdict != Foreign {
			r.Objects = append(r.Objects, all[i])
		}
	}
	return r
}

// Breaker is the name of the gate against mass orphaning.
const Breaker = "no-mass-orphaning"

// KubeletUptime and RuntimeUptime are the names of the gates that time alone opens.
const (
	KubeletUptime = "kubelet-uptime"
	RuntimeUptime = "runtime-uptime"
)

// Stays reports whether a gate is closed and time alone will not open it.
func (g Gate) Stays() bool { return !g.Open && g.Name != KubeletUptime && g.Name != RuntimeUptime }

// GateApplies reports whether a closed gate matters for objects of a kind.
func GateApplies(g Gate, kind Kind) bool { return g.Name != NetworkReady || kind.Networked() }

// NetworkReady is the name of the gate that applies to network objects only.
const NetworkReady = "network-ready"
