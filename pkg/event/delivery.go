package event

import (
	"errors"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// MaxExamples limits the examples of pod.missed.
	MaxExamples = 5
	maxCauses   = 20
)

// Missed is the data of pod.missed: late acts of pods, for one reason of the system, on one node.
type Missed struct {
	Reason   string      `json:"reason"` // "other": of the reasons and nodes for which the minute had no room
	Node     string      `json:"node,omitempty"`
	Minute   time.Time   `json:"minute"` // when that of the verdicts began
	Count    int         `json:"count"`  // verdicts
	Examples []MissedPod `json:"examples"`
	Message  string      `json:"message"` // for people
}

// MissedPod is an example of a missed act.
type MissedPod struct {
	Act       string `json:"act"` // creation, deletion, upgrade or refusal
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"` // of a refusal, the owner's
}

// about returns the subject of the event and its severity.
func (m Missed) about() (Subject, finding.Severity) {
	return Subject{"pod-delivery", m.Reason, "Node", m.Node}, finding.Warning
}

func (m Missed) problem() error {
	size := len(m.Reason) + len(m.Node) + len(m.Message)
	for _, p := range m.Examples {
		size += len(p.Act) + len(p.Namespace) + len(p.Name) + len(p.UID)
	}
	switch {
	case m.Reason == "" || m.Count < 1 || m.Minute.IsZero():
		return errors.New("data: reason, count and minute must be set")
	case len(m.Reason) > maxWord || len(m.Examples) > MaxExamples || size > 2*maxMessage:
		return errors.New("data: too long, or too many examples")
	}
	return nil
}

// SLO is the data of slo.state: the level of a rule about a cluster has changed. Levels are Healthy, Warning, Fatal and
// Unknown.
type SLO struct {
	Rule    string    `json:"rule"` // Health, DeliveryBudgetBurnsFast, DeliveryBudgetBurns or NodesFailPods
	Cluster string    `json:"cluster"`
	Before  string    `json:"before"`
	After   string    `json:"after"`
	Causes  []string  `json:"causes,omitempty"` // of the level after
	AsOf    time.Time `json:"asof"`
	Message string    `json:"message"` // for people
}

// about returns the subject of the event and its severity: that of the worse level, so that a reader who asks for one
// severity sees the end as well.
func (s SLO) about() (Subject, finding.Severity) {
	severity := finding.Info
	for _, level := range []string{s.Before, s.After} {
		switch {
		case level == "Fatal":
			severity = finding.Fatal
		case level != "Healthy" && severity != finding.Fatal:
			severity = finding.Warning
		}
	}
	return Subject{"slo", s.Rule, "Cluster", s.Cluster}, severity
}

func (s SLO) problem() error {
	size := len(s.Message) + len(s.Cluster)
	for _, cause := range s.Causes {
		size += len(cause)
	}
	switch {
	case s.Rule == "" || s.Before == "" || s.After == "" || s.AsOf.IsZero():
		return errors.New("data: rule, before, after and asof must be set")
	case max(len(s.Rule), len(s.Before), len(s.After)) > maxWord || len(s.Causes) > maxCauses || size > 2*maxMessage:
		return errors.New("data: too long, or too many causes")
	}
	return nil
}
