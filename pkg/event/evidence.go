package event

import (
	"encoding/json"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Evidence is the data of pod.evidence: one creation or deletion of a pod, as its node saw it. All times are by the
// node's clock; zero: not seen.
type Evidence struct {
	Act       string `json:"act"` // creation or deletion
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`

	Began time.Time `json:"began,omitzero"` // the node learned of the act
	Ended time.Time `json:"ended,omitzero"` // the act ended; zero: not yet

	SandboxRequested time.Time   `json:"sandboxRequested,omitzero"` // all volumes are mounted then
	SandboxCreated   time.Time   `json:"sandboxCreated,omitzero"`   // its network is set up then
	SandboxReady     time.Time   `json:"sandboxReady,omitzero"`
	SandboxStopped   time.Time   `json:"sandboxStopped,omitzero"`
	Unmounted        time.Time   `json:"unmounted,omitzero"` // the node first saw no mount of the pod, up to 10 s late
	Containers       []Lifetimes `json:"containers,omitempty"`

	Mounts    []string `json:"mounts,omitempty"`    // below the pod's directory
	Stage     string   `json:"stage,omitempty"`     // the step it waits for, as of stuck-pods
	Text      string   `json:"text,omitempty"`      // why, with the holders
	Leftovers []string `json:"leftovers,omitempty"` // of this pod: kind and name
	Findings  []string `json:"findings,omitempty"`  // active on the node: CHECK/REASON/KIND/NAME
	Cut       bool     `json:"cut,omitempty"`       // parts are missing, since it would be too long
}

// Lifetimes are the times of one container.
type Lifetimes struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created,omitzero"`
	Started time.Time `json:"started,omitzero"`
	Exited  time.Time `json:"exited,omitzero"`
}

// MaxEvidence bounds the data of pod.evidence, in bytes.
const MaxEvidence = 2 << 10

const (
	maxEvidenceText = 400 // bytes
	maxListed       = 16  // entries of a list
)

// OfEvidence returns the event of an evidence without its sender. It leaves out what exceeds MaxEvidence: findings first, then
// mounts, then containers.
func OfEvidence(e Evidence, at time.Time) Event {
	e.Namespace, e.Name, e.UID = text(e.Namespace, maxWord), text(e.Name, 2*maxWord), text(e.UID, maxWord)
	e.Stage, e.Text = text(e.Stage, maxWord), text(e.Text, maxEvidenceText)
	e.Containers = append([]Lifetimes(nil), e.Containers...)
	for i := range e.Containers {
		e.Containers[i].Name = text(e.Containers[i].Name, maxWord)
	}
	for _, list := range []*[]string{&e.Mounts, &e.Leftovers, &e.Findings} {
		kept := make([]string, 0, maxListed)
		for _, s := range (*list)[:min(len(*list), maxListed)] {
			kept = append(kept, text(s, maxWord))
		}
		e.Cut = e.Cut || len(*list) > maxListed
		*list = kept
	}
	for e.size() > MaxEvidence && e.leaveOut() {
		e.Cut = true
	}
	return Event{Type: PodEvidence, Time: at.UTC(), Severity: finding.Info, Data: e}
}

// leaveOut leaves one part out, and reports whether there was one.
func (e *Evidence) leaveOut() bool {
	switch {
	case len(e.Findings) > 0:
		e.Findings = e.Findings[:len(e.Findings)-1]
	case len(e.Mounts) > 0:
		e.Mounts = e.Mounts[:len(e.Mounts)-1]
	case len(e.Containers) > 0:
		e.Containers = e.Containers[:len(e.Containers)-1]
	case len(e.Leftovers) > 0:
		e.Leftovers = e.Leftovers[:len(e.Leftovers)-1]
	case e.Text != "":
		e.Text = ""
	default:
		return false
	}
	return true
}

func (e Evidence) size() int {
	data, _ := json.Marshal(e) // plain data: it can always be encoded
	return len(data)
}
