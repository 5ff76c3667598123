package event

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Fault is the data of fault.*: a finding that is believed, or no longer is.
type Fault struct {
	ID         string            `json:"id"` // of the change; the same change sent twice carries the same
	Check      string            `json:"check"`
	Subject    finding.Subject   `json:"subject"`
	Severity   finding.Severity  `json:"severity"`
	Reason     string            `json:"reason"`
	Message    string            `json:"message"`
	Facts      map[string]string `json:"facts,omitempty"`
	ObservedAt time.Time         `json:"observedAt,omitzero"` // first evidence
	RaisedAt   time.Time         `json:"raisedAt,omitzero"`   // believed since
	OneShot    bool              `json:"oneShot,omitempty"`   // over at once: no fault.cleared follows

	SuggestedAction finding.SuggestedAction `json:"suggestedAction,omitempty"` // asked of others: nothing on the node does it
	Part            string                  `json:"part,omitempty"`            // what is to be replaced

	Detector   string `json:"detector,omitempty"`   // who has found it, unless the node's agent has
	TTLSeconds int    `json:"ttlSeconds,omitempty"` // of a detector's: it ends so long after its last report; 0: an hour
}

// Activity is the data of leftover.* and action.*.
type Activity struct {
	ID       string               `json:"id"` // of the transition; the same transition sent twice carries the same
	Kind     finding.ActivityKind `json:"kind"`
	Check    string               `json:"check"`
	Subject  finding.Subject      `json:"subject"`
	Pod      finding.Subject      `json:"pod"` // equal to subject for the release of a pod as a whole
	Message  string               `json:"message"`
	FoundAt  time.Time            `json:"foundAt,omitzero"` // leftovers only
	Repeated bool                 `json:"repeated,omitempty"`
}

// Snapshot is the data of node.snapshot: everything active on a node, in one or more parts.
type Snapshot struct {
	AsOf      string     `json:"asOf"`       // the last sequence taken into account, in the form of the attribute
	Of        string     `json:"asOfStream"` // the stream of that sequence; a snapshot is in another
	Part      int        `json:"part"`       // from 1
	End       bool       `json:"end"`        // no part follows
	Faults    []Fault    `json:"faults"`
	Leftovers []Activity `json:"leftovers"`
	// Checks in unknown state, in the last part: the absence of their faults here proves nothing.
	Unknown []string `json:"unknown,omitempty"`
	// PodsEnded is how many pods have ended on the node since its agent started, in the last part; nil: not counted.
	PodsEnded *uint64 `json:"podsEnded,omitempty"`
}

// Agent is the data of agent.started, agent.stopping and agent.alive.
type Agent struct {
	Version       string   `json:"version"`
	Configuration string   `json:"configuration"`       // hash of the configuration in force
	LastSequence  string   `json:"lastSequence"`        // in the form of the attribute
	LastStream    string   `json:"lastStream"`          // the stream of that sequence; agent.alive is in another
	Waiting       int      `json:"waiting"`             // events in the outbox
	Blind         []string `json:"blind"`               // checks that have been inconclusive for too long
	PodsEnded     *uint64  `json:"podsEnded,omitempty"` // see Snapshot
}

// Gap is the data of agent.gap: events of the stream that will not arrive.
type Gap struct {
	Ranges []Range `json:"ranges"`
}

// Range is an inclusive range of sequences, in the form of the attribute.
type Range struct {
	Stream string `json:"stream,omitempty"` // if not that of the event
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"` // dropped, expired, rejected, lost (found missing after a restart)
}

// Operator is the data of operator.*: an operator's entry about a fault.
type Operator struct {
	Check    string          `json:"check"`
	Subject  finding.Subject `json:"subject"`
	Reason   string          `json:"reason,omitempty"` // with Detector: of a detector's fault
	Detector string          `json:"detector,omitempty"`
	RaisedAt time.Time       `json:"raisedAt,omitzero"` // of the fault: it may come again another time
	By       string          `json:"by"`
	Text     string          `json:"text,omitempty"`
	Until    time.Time       `json:"until,omitzero"` // end of the mute or the maintenance; zero: ended now
}

// Silence is the data of node.blind, node.lost, node.seen, node.removed, cluster.silent and cluster.seen. All times
// except Lease are by the center's clock.
type Silence struct {
	Reason   string    `json:"reason"`
	Message  string    `json:"message"`
	Since    time.Time `json:"since"`          // of the silence
	LastSeen time.Time `json:"heard,omitzero"` // last message of the agent
	Lease    time.Time `json:"lease,omitzero"` // kubelet's last renewal of its Lease, by its own clock
	Ready    string    `json:"ready,omitempty"`
	UID      string    `json:"uid,omitempty"`   // of the Node
	Nodes    int       `json:"nodes,omitempty"` // of a cluster: number of silent nodes
}

// Lost is the data of subscription.gap: the range that a subscriber will not get, and where it finds the state instead.
type Lost struct {
	Subscription string `json:"subscription"`
	From         string `json:"from"` // offsets, inclusive
	To           string `json:"to"`
	Reason       string `json:"reason"`
	Snapshot     string `json:"snapshot"`          // path at the center
	Cluster      string `json:"cluster,omitempty"` // if only the events of one node are lost
	Node         string `json:"node,omitempty"`
}

func isFault(t Type) bool { return t == FaultRaised || t == FaultUpdated || t == FaultCleared }

// readData decodes the data of a type that a sender sends now.
func readData(t Type, c cloudevents.Event) (any, error) {
	data := c.Data()
	if c.DataBase64 || len(data) == 0 || !isJSON(mediaOf(c.DataContentType())) {
		return nil, errors.New("data must be JSON")
	}
	value, err := ReadData(t, data)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(misspelled(data, reflect.TypeOf(value)), unprintable(value)); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return value, nil
}

// ReadData decodes the data of a type. It accepts the data that earlier centers have stored.
func ReadData(t Type, data []byte) (any, error) {
	if isFault(t) {
		return readAs[Fault](data)
	}
	switch t {
	case LeftoverFound, LeftoverReleased, LeftoverGone, ActionPlanned, ActionStarted, ActionSucceeded, ActionFailed,
		ActionRefused:
		return readAs[Activity](data)
	case NodeSnapshot:
		return readAs[Snapshot](data)
	case AgentStarted, AgentStopping, AgentAlive:
		return readAs[Agent](data)
	case AgentGap:
		return readAs[Gap](data)
	case PodEvidence:
		return readAs[Evidence](data)
	case PodMissed:
		return readAs[Missed](data)
	case SLOState:
		return readAs[SLO](data)
	}
	return json.RawMessage(data), nil
}

func readAs[T any](data []byte) (any, error) {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return v, nil
}

// Conversions cut off their texts at these bounds, in bytes, so that an event is never too large: encoding makes a text
// at most six times longer, and the name of a subject is in it twice.
const (
	maxMessage = 4 << 10
	maxName    = 1 << 10
	maxWord    = 128 // IDs, reasons, kinds
	maxFacts   = 2 << 10
)

// OfUpdate returns the event of an update without its sender: Cluster, Node, Stream and Sequence. A change of status
// has no event, because it follows from the findings.
func OfUpdate(u finding.Update) (Event, bool) {
	types := map[finding.UpdateKind]Type{finding.Raised: FaultRaised, finding.Changed: FaultUpdated,
		finding.Cleared: FaultCleared}
	t, ok := types[u.Kind]
	if !ok {
		return Event{}, false
	}
	f := u.Finding
	data := Fault{
		ID: u.ID, Check: text(f.Check, maxWord), Subject: subject(f.Subject), Severity: f.Severity,
		Reason: text(f.Reason, maxWord), Message: text(f.Message, maxMessage), Facts: facts(f.Facts),
		ObservedAt: u.First.Wall.UTC(), RaisedAt: u.Since.Wall.UTC(), OneShot: f.OneShot,
		SuggestedAction: f.SuggestedAction, Part: text(f.Part, maxName),
	}
	return Event{Type: t, Time: u.At.Wall.UTC(), Severity: f.Severity, BootID: u.At.Boot,
		Subject: Subject{data.Check, data.Reason, data.Subject.Kind, data.Subject.Name}, Data: data}, true
}

// OfBelieved returns the form of a believed finding in a snapshot.
func OfBelieved(b finding.Believed) Fault {
	e, _ := OfUpdate(finding.Update{ID: b.ID, Kind: finding.Raised, Finding: b.Finding, First: b.First,
		Since: b.Raised})
	fault, _ := e.Data.(Fault)
	return fault
}

// OfLeftover returns the form of a leftover in a snapshot.
func OfLeftover(a finding.Activity) Activity {
	e, _ := OfActivity(a)
	activity, _ := e.Data.(Activity)
	return activity
}

// OfActivity returns the event of an activity without its sender. The reason in its subject is the kind, in CamelCase.
func OfActivity(a finding.Activity) (Event, bool) {
	types := map[finding.ActivityKind]Type{
		finding.LeftoverFound: LeftoverFound, finding.LeftoverPresent: LeftoverFound,
		finding.LeftoverReleased: LeftoverReleased, finding.LeftoverGone: LeftoverGone,
		finding.ActionPlanned: ActionPlanned, finding.ActionRefused: ActionRefused,
		finding.ActionStarted: ActionStarted, finding.ActionDone: ActionSucceeded,
		finding.ActionVerified: ActionSucceeded, finding.ActionFailed: ActionFailed,
	}
	t, ok := types[a.Kind]
	if !ok {
		return Event{}, false
	}
	data := Activity{
		ID: a.ID, Kind: a.Kind, Check: text(a.Check, maxWord), Subject: subject(a.Subject), Pod: subject(a.Pod),
		Message: text(a.Message, maxMessage), FoundAt: a.Since.Wall.UTC(), Repeated: a.Repeated,
	}
	reason := ""
	for word := range strings.SplitSeq(string(a.Kind), "-") {
		reason += strings.ToUpper(word[:1]) + word[1:]
	}
	return Event{Type: t, Time: a.At.Wall.UTC(), Severity: a.Severity, BootID: a.At.Boot,
		Subject: Subject{data.Check, reason, data.Subject.Kind, data.Subject.Name}, Data: data}, true
}

func subject(s finding.Subject) finding.Subject {
	return finding.Subject{Kind: text(s.Kind, maxWord), Name: text(s.Name, maxName), UID: text(s.UID, maxWord)}
}

// facts returns the facts if they fit, else nil.
func facts(all map[string]string) map[string]string {
	size, kept := 0, map[string]string{}
	for key, value := range all {
		key, value = text(key, maxFacts), text(value, maxFacts)
		size += len(key) + len(value)
		kept[key] = value
	}
	if size > maxFacts || len(kept) == 0 {
		return nil
	}
	return kept
}

// text returns s as valid UTF-8 without control characters, at most limit bytes.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(finding.Clip(s, limit), "")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
