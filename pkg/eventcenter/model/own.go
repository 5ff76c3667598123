package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Own is an event that the center itself creates for a cluster.
type Own struct {
	Cluster, Node string // no node: about the whole cluster
	ID            string
	Type          event.Type
	Check, Reason string
	Subject       finding.Subject
	Severity      finding.Severity // default info
	Time          time.Time
	Data          any
	Of            string // ID of the cause, if inferred; otherwise empty
}

// Source is the source of the center's own events about a cluster.
func Source(cluster string) string {
	return "/clusters/" + url.PathEscape(cluster) + "/eventcenter"
}

// DerivedID returns an ID that follows from its parts: two centers that infer the same event give it the same ID.
func DerivedID(kind string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return kind + "-" + hex.EncodeToString(sum[:16])
}

// Event returns the event to append to the journal.
func (o Own) Event() (journal.Event, error) {
	subject := []string{o.Check, o.Reason, o.Subject.Kind, o.Subject.Name}
	for i, part := range subject {
		subject[i] = url.PathEscape(part)
	}
	severity := cmp.Or(o.Severity, finding.Info)
	text, err := json.Marshal(struct {
		SpecVersion     string           `json:"specversion"`
		ID              string           `json:"id"`
		Source          string           `json:"source"`
		Type            event.Type       `json:"type"`
		Subject         string           `json:"subject"`
		DataContentType string           `json:"datacontenttype"`
		DataSchema      string           `json:"dataschema"`
		Time            time.Time        `json:"time"`
		Data            any              `json:"data"`
		Inferred        bool             `json:"inferred,omitempty"`
		Of              string           `json:"inferredof,omitempty"` // ID of the snapshot, or of node.removed
		Node            string           `json:"partitionkey,omitempty"`
		Severity        finding.Severity `json:"severity"`
	}{"1.0", o.ID, Source(o.Cluster), o.Type, strings.Join(subject, "/"), "application/json", o.Type.Schema(), o.Time, o.Data,
		o.Of != "", o.Of, o.Node, severity})
	return journal.Event{Source: Source(o.Cluster), ID: o.ID, Type: string(o.Type), Cluster: o.Cluster, Node: o.Node,
		Severity: string(severity), Check: o.Check, Reason: o.Reason, JSON: text}, err
}
