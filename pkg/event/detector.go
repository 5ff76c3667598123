package event

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The bounds of the time to live of a detector's fault.
const (
	defaultTTL = time.Hour
	minTTL     = time.Minute
	maxTTL     = 7 * 24 * time.Hour
)

const detectorName = `[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?`

// IsDetector reports whether a text can be the name of a detector.
var IsDetector = regexp.MustCompile(`^` + detectorName + `$`).MatchString

var sourceForm = regexp.MustCompile(`^/clusters/([^/]+)(?:/nodes/([^/]+))?(?:/(` + detectorName + `))?$`)

// centerName stands in the sources of the event center itself, in the place of a detector.
const centerName = "eventcenter"

// ReadSource reads the source of a node's agent, /clusters/CLUSTER/nodes/NODE; of a detector beside it, which adds its
// name: /clusters/CLUSTER/nodes/NODE/DETECTOR; or of a detector of a whole cluster, /clusters/CLUSTER/DETECTOR: then node is
// empty.
func ReadSource(source string) (cluster, node, detector string, ok bool) {
	parts := sourceForm.FindStringSubmatch(source)
	if parts == nil || parts[2] == "" && (parts[3] == "" || parts[3] == centerName) {
		return "", "", "", false
	}
	cluster, err1 := url.PathUnescape(parts[1])
	node, err2 := url.PathUnescape(parts[2])
	if err1 != nil || err2 != nil || url.PathEscape(cluster) != parts[1] || url.PathEscape(node) != parts[2] {
		return "", "", "", false
	}
	return cluster, node, parts[3], true
}

// Key is the identity of a fault on its node. A detector's faults are its own: another source never ends them.
func (f Fault) Key() string {
	parts := []string{f.Check, f.Subject.Kind, f.Subject.Name, f.Subject.UID}
	if f.Detector != "" {
		parts = append(parts, f.Reason, f.Detector)
	}
	return strings.Join(parts, "\x00")
}

// TTL is how long a detector's fault lasts after its last report.
func (f Fault) TTL() time.Duration {
	if f.TTLSeconds == 0 {
		return defaultTTL
	}
	return time.Duration(f.TTLSeconds) * time.Second
}

// Earlier returns the earlier of two times: a detector whose clock is ahead says its word when it is received.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// OfDetector returns an event of a detector about a node; an empty node: about the whole cluster.
func OfDetector(t Type, cluster, node, detector, id string, at time.Time, data any) (cloudevents.Event, error) {
	e := cloudevents.New()
	e.SetID(id)
	e.SetType(string(t))
	e.SetDataSchema(t.Schema())
	source := "/clusters/" + url.PathEscape(cluster)
	if node != "" {
		source = Event{Cluster: cluster, Node: node}.source()
	}
	e.SetSource(source + "/" + detector)
	e.SetTime(at)
	if about, ok := data.(delivery); ok {
		subject, severity := about.about()
		e.SetSubject(subject.encode())
		e.SetExtension("severity", string(severity))
	}
	return e, e.SetData(cloudevents.ApplicationJSON, data)
}

// delivery is data that a detector sends beside faults.
type delivery interface {
	about() (Subject, finding.Severity)
	problem() error
}

// FromDetector reads an event that a detector beside the agent sends: about a fault, pod.missed or slo.state. It has no
// stream and no sequence: the attribute "time" orders them.
func FromDetector(c cloudevents.Event, size int) (Event, error) {
	e, err := readDetector(c, size)
	if err != nil {
		return Event{}, fmt.Errorf("event %.80q: %w", c.ID(), err)
	}
	return e, nil
}

func readDetector(c cloudevents.Event, size int) (Event, error) {
	e := Event{Type: Type(c.Type()), Time: c.Time()}
	cluster, node, detector, ok := ReadSource(c.Source())
	switch {
	case !slices.Contains([]Type{FaultRaised, FaultUpdated, FaultCleared, PodMissed, SLOState}, e.Type):
		return e, fmt.Errorf("a detector sends %s, %s, %s, %s and %s, and types of its own", FaultRaised, FaultUpdated, FaultCleared,
			PodMissed, SLOState)
	case !ok || detector == "" || node == "" && e.Type != PodMissed && e.Type != SLOState:
		return e, fmt.Errorf("source %.80q: want /clusters/CLUSTER/nodes/NODE/DETECTOR", c.Source())
	case size > MaxSize:
		return e, fmt.Errorf("%d bytes, %d are possible", size, MaxSize)
	case e.Time.IsZero():
		return e, errors.New("time must be set")
	case c.Extensions()["stream"] != nil || c.Extensions()["sequence"] != nil:
		return e, errors.New("stream and sequence are for agents")
	case c.DataBase64 || len(c.Data()) == 0 || !isJSON(mediaOf(c.DataContentType())):
		return e, errors.New("data must be JSON")
	}
	var err error
	if e.Data, err = ReadData(e.Type, c.Data()); err != nil {
		return e, err
	}
	e.Cluster, e.Node = cluster, node
	if about, ok := e.Data.(delivery); ok {
		e.Subject, e.Severity = about.about()
		return e, about.problem()
	}
	fault, _ := e.Data.(Fault)
	if fault.Detector != "" && fault.Detector != detector {
		return e, fmt.Errorf("data: detector %.80q is not the source's", fault.Detector)
	}
	fault.Detector = detector
	e.Severity, e.Data = fault.Severity, fault
	e.Subject = Subject{fault.Check, fault.Reason, fault.Subject.Kind, fault.Subject.Name}
	return e, fault.problem()
}

// problem returns what is wrong with a detector's fault: what is missing, or too long.
func (f Fault) problem() error {
	for _, field := range []struct {
		name, text string
		least, max int
	}{{"check", f.Check, 1, maxWord}, {"reason", f.Reason, 1, maxWord}, {"subject.kind", f.Subject.Kind, 1, maxWord},
		{"subject.name", f.Subject.Name, 0, maxName}, {"subject.uid", f.Subject.UID, 0, maxWord}, {"id", f.ID, 0, maxWord},
		{"message", f.Message, 0, maxMessage}, {"part", f.Part, 0, maxName},
		{"suggestedAction", string(f.SuggestedAction), 0, maxWord}} {
		if len(field.text) < field.least {
			return fmt.Errorf("data: %s must be set", field.name)
		}
		if len(field.text) > field.max {
			return fmt.Errorf("data: %s has %d bytes, %d are possible", field.name, len(field.text), field.max)
		}
	}
	size := 0
	for key, value := range f.Facts {
		size += len(key) + len(value)
	}
	least, most := int(minTTL/time.Second), int(maxTTL/time.Second)
	switch {
	case !f.Severity.Valid():
		return fmt.Errorf("data: unknown severity %.80q", f.Severity)
	case size > maxFacts:
		return fmt.Errorf("data: facts have %d bytes, %d are possible", size, maxFacts)
	case f.TTLSeconds != 0 && (f.TTLSeconds < least || f.TTLSeconds > most):
		return fmt.Errorf("data: ttlSeconds %d: want %d to %d", f.TTLSeconds, least, most)
	}
	return nil
}
