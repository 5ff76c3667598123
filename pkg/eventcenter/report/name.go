package report

import (
	"cmp"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Active is an active fault.
type Active struct {
	About
	Owner string  `json:"owner,omitempty"` // the person who took it over
	Name  counted `json:"name"`            // the name under which it is counted
}

// About is a fault on a node.
type About struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // empty: the node's agent
	Severity finding.Severity `json:"severity"`
	Subject  finding.Subject  `json:"subject"`
	Message  string           `json:"message"`
	Found    time.Time        `json:"found"`
}

// Name is the name under which a fault is counted: with its severity when it was found.
type Name struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // empty: agents
	Severity finding.Severity `json:"severity"`
}

// counted is a name with its form in a day's file.
type counted Name

// MarshalText returns the form of a name in a day's file.
func (n counted) MarshalText() ([]byte, error) {
	text := strings.Join([]string{n.Check, n.Reason, string(n.Severity), n.Detector}, "\x00")
	return []byte(strings.TrimSuffix(text, "\x00")), nil
}

// UnmarshalText reads a name in a day's file.
func (n *counted) UnmarshalText(text []byte) error {
	parts := append(strings.SplitN(string(text), "\x00", 4), "", "", "")
	*n = counted{Check: parts[0], Reason: cmp.Or(parts[1], parts[0]), Detector: parts[3],
		Severity: cmp.Or(finding.Severity(parts[2]), finding.Info)}
	return nil
}

func nameOf(f *model.Fault) counted { return counted{f.Check, f.FoundFor, f.Detector, f.FoundAs} }
