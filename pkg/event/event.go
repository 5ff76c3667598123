// Package event holds the wire types between agents and an event center: CloudEvents 1.0 in structured JSON. It encodes
// and decodes; it opens no connection and keeps no state. It refuses an event whose envelope differs from an agent's,
// but ignores unknown members of its data, because agents and centers are upgraded at different times.
package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Type is the type of an event. Unlisted types are decoded as well; their data stays raw.
type Type string

const typePrefix = "io.github.nodeagent."

// The types that agents send, with the type of their data.
const (
	FaultRaised      Type = typePrefix + "fault.raised.v1" // Fault
	FaultUpdated     Type = typePrefix + "fault.updated.v1"
	FaultCleared     Type = typePrefix + "fault.cleared.v1"
	LeftoverFound    Type = typePrefix + "leftover.found.v1" // Activity
	LeftoverReleased Type = typePrefix + "leftover.released.v1"
	LeftoverGone     Type = typePrefix + "leftover.gone.v1"
	ActionPlanned    Type = typePrefix + "action.planned.v1"
	ActionStarted    Type = typePrefix + "action.started.v1"
	ActionSucceeded  Type = typePrefix + "action.succeeded.v1"
	ActionFailed     Type = typePrefix + "action.failed.v1"
	ActionRefused    Type = typePrefix + "action.refused.v1"
	NodeSnapshot     Type = typePrefix + "node.snapshot.v1" // Snapshot
	AgentStarted     Type = typePrefix + "agent.started.v1" // Agent
	AgentStopping    Type = typePrefix + "agent.stopping.v1"
	AgentAlive       Type = typePrefix + "agent.alive.v1"
	AgentGap         Type = typePrefix + "agent.gap.v1"    // Gap
	PodEvidence      Type = typePrefix + "pod.evidence.v1" // Evidence
)

// The types that tracecenter sends as a detector, beside fault.*.
const (
	PodMissed Type = typePrefix + "pod.missed.v1" // Missed
	SLOState  Type = typePrefix + "slo.state.v1"  // SLO
)

// The types of operators' entries about a fault at the center, with Operator as their data.
const (
	OperatorAcknowledged Type = typePrefix + "operator.acknowledged.v1"
	OperatorMuted        Type = typePrefix + "operator.muted.v1"
	OperatorCommented    Type = typePrefix + "operator.commented.v1"
	// OperatorMaintenance means that a node is under maintenance until a time: it is not expected to be available.
	OperatorMaintenance Type = typePrefix + "operator.maintenance.v1"
)

// The types of the event center's own events about a node and a cluster.
const (
	NodeBlind     Type = typePrefix + "node.blind.v1" // Silence
	NodeLost      Type = typePrefix + "node.lost.v1"
	NodeSeen      Type = typePrefix + "node.seen.v1"
	NodeRemoved   Type = typePrefix + "node.removed.v1"
	ClusterSilent Type = typePrefix + "cluster.silent.v1"
	ClusterSeen   Type = typePrefix + "cluster.seen.v1"
	// SubscriptionGap is sent to one subscriber only, and is not in the journal.
	SubscriptionGap Type = typePrefix + "subscription.gap.v1" // Lost
)

const (
	// MaxSize bounds an encoded event, and MaxSnapshot one part of a snapshot, in bytes.
	MaxSize     = 64 << 10
	MaxSnapshot = 256 << 10

	schemaBase = "https://nodeagent.github.io/schemas/" // + "fault.raised.v1.json"
)

// Event is one event: the attributes of the CloudEvent, by their meaning, and its data.
type Event struct {
	Type    Type
	Cluster string  // with Node the "source"
	Node    string  // also the "partitionkey": events of one node stay in order
	Subject Subject // zero for events about the agent or the whole node
	Time    time.Time

	Severity finding.Severity
	BootID   string // of the boot in which it happened
	Stream   string // ULID; each start of an agent begins two: one of changes, one of state
	// Sequence in the stream, from 1: the order of events. With Stream it is the "id". The stream of changes has no
	// gaps except those named in an agent.gap. The stream of state (node.snapshot, agent.alive) may have some: only the
	// newest counts.
	Sequence uint64

	Data any // see Type; json.RawMessage for an unknown type
}

// Subject is the "subject" of an event: check/reason/kind/name, each percent-encoded.
type Subject struct{ Check, Reason, Kind, Name string }

func (s Subject) encode() string {
	parts := []string{s.Check, s.Reason, s.Kind, s.Name}
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// ID returns the identity of the event, the same in every attempt to send it.
func (e Event) ID() string { return e.Stream + "-" + Sequence(e.Sequence) }

// Sequence returns n in the form of the attribute "sequence".
func Sequence(n uint64) string {
	const zeros = "00000000000000000000"
	digits := strconv.FormatUint(n, 10)
	return zeros[len(digits):] + digits
}

func (e Event) source() string {
	return "/clusters/" + url.PathEscape(e.Cluster) + "/nodes/" + url.PathEscape(e.Node)
}

// problem returns what is wrong with the attributes.
func (e Event) problem() error {
	switch {
	case !strings.HasPrefix(string(e.Type), typePrefix) || len(e.Type) > 128:
		return fmt.Errorf("type %q is not of this project", e.Type)
	case e.Cluster == "" || e.Node == "":
		return errors.New("cluster and node must be set")
	case e.Time.IsZero():
		return errors.New("time must be set")
	case !e.Severity.Valid():
		return fmt.Errorf("unknown severity %q", e.Severity)
	case !isStream(e.Stream):
		return fmt.Errorf("stream %q is not a ULID", e.Stream)
	case e.Sequence == 0:
		return errors.New("sequence counts from 1")
	}
	return nil
}

func (t Type) maxSize() int {
	if t == NodeSnapshot {
		return MaxSnapshot
	}
	return MaxSize
}

// Encode returns e as a CloudEvent in structured JSON.
func (e Event) Encode() ([]byte, error) {
	if err := e.problem(); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	data, err := e.encode()
	if err == nil && len(data) > e.Type.maxSize() {
		err = fmt.Errorf("%d bytes, %d are possible", len(data), e.Type.maxSize())
	}
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID(), err)
	}
	return data, nil
}

func (e Event) encode() ([]byte, error) {
	c := cloudevents.New(cloudevents.CloudEventsVersionV1)
	c.SetID(e.ID())
	c.SetType(string(e.Type))
	c.SetSource(e.source())
	c.SetTime(e.Time)
	c.SetDataSchema(e.Type.Schema())
	if e.Subject != (Subject{}) {
		c.SetSubject(e.Subject.encode())
	}
	for name, value := range e.extensions() {
		c.SetExtension(name, value)
	}
	if err := errors.Join(c.SetData(cloudevents.ApplicationJSON, e.Data), c.Validate()); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// Schema returns the "dataschema" of a type; package schemas contains it.
func (t Type) Schema() string {
	return schemaBase + strings.TrimPrefix(string(t), typePrefix) + ".json"
}

func (e Event) extensions() map[string]string {
	extensions := map[string]string{"severity": string(e.Severity), "partitionkey": e.Node, "stream": e.Stream,
		"sequence": Sequence(e.Sequence)}
	if e.BootID != "" {
		extensions["bootid"] = e.BootID
	}
	return extensions
}

// Decode reads a CloudEvent in structured JSON. It refuses everything that Encode would not have written, except
// another order of members, unknown attributes and unknown members of the data.
func Decode(data []byte) (Event, error) {
	if len(data) > MaxSnapshot {
		return Event{}, fmt.Errorf("event: %d bytes, %d are possible", len(data), MaxSnapshot)
	}
	c, err := ReadEnvelope(data)
	if err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	return FromCloudEvent(c.Event, len(data))
}

// FromCloudEvent is Decode for a CloudEvent already read. size is that of its structured JSON in bytes.
func FromCloudEvent(c cloudevents.Event, size int) (Event, error) {
	e, err := read(c, size)
	if err != nil {
		return Event{}, fmt.Errorf("event %.80q: %w", c.ID(), err)
	}
	return e, nil
}

func read(c cloudevents.Event, size int) (Event, error) {
	e := Event{Type: Type(c.Type()), Time: c.Time()}
	if size > e.Type.maxSize() {
		return e, fmt.Errorf("%d bytes, %d are possible", size, e.Type.maxSize())
	}
	values := map[string]string{}
	for _, name := range []string{"severity", "bootid", "partitionkey", "stream", "sequence"} {
		value, ok := c.Extensions()[name].(string)
		if !ok && name != "bootid" {
			return e, fmt.Errorf("%s must be a string", name)
		}
		values[name] = value
	}
	e.Severity, e.BootID, e.Stream = finding.Severity(values["severity"]), values["bootid"], values["stream"]
	e.Sequence, _ = strconv.ParseUint(values["sequence"], 10, 64) // any other form than Encode's is refused below
	var err error
	var detector string
	if e.Cluster, e.Node, detector, _ = ReadSource(c.Source()); e.Node == "" || detector != "" {
		return e, fmt.Errorf("source %.80q: want /clusters/CLUSTER/nodes/NODE", c.Source())
	}
	if e.Subject, err = readSubject(c.Subject()); err != nil {
		return e, err
	}
	if err := e.problem(); err != nil {
		return e, err
	}
	for _, attribute := range []struct{ name, got, want string }{
		{"id", c.ID(), e.ID()}, {"sequence", values["sequence"], Sequence(e.Sequence)},
		{"partitionkey", values["partitionkey"], e.Node}, {"dataschema", c.DataSchema(), e.Type.Schema()},
		{"datacontenttype", c.DataContentType(), cloudevents.ApplicationJSON},
	} {
		if attribute.got != attribute.want {
			return e, fmt.Errorf("%s %.80q: want %q", attribute.name, attribute.got, attribute.want)
		}
	}
	if c.DataBase64 || len(c.Data()) == 0 {
		return e, errors.New("data must be JSON")
	}
	e.Data, err = ReadData(e.Type, c.Data())
	return e, err
}

func readSubject(text string) (Subject, error) {
	if text == "" {
		return Subject{}, nil
	}
	parts := strings.Split(text, "/")
	for i, part := range parts {
		parts[i], _ = url.PathUnescape(part) // empty, and so refused, if it cannot be decoded
	}
	if len(parts) == 4 {
		if s := (Subject{parts[0], parts[1], parts[2], parts[3]}); s.encode() == text {
			return s, nil
		}
	}
	return Subject{}, fmt.Errorf("subject %.80q: want CHECK/REASON/KIND/NAME", text)
}

// isStream reports whether a text is a ULID.
var isStream = regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Z]{25}$`).MatchString
